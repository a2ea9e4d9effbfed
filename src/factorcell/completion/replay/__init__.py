"""Progressive evaluation of completion: predict each text of a stream, judge the prediction, then learn the text."""
