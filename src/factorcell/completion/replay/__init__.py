"""Progressive evaluation of completion: complete each text of a stream, judge the suggestions, then learn the text."""
