"""Tables from files, frames, data sets and lists, in chunks of rows."""
