"""The command line: each verb parses, calls the library, prints."""
