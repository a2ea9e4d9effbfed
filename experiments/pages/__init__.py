"""From the rows of the experiments to the tables and figures of docs/, a module for each part of the pages."""
