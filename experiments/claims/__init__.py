"""Claims of the papers, and questions of this project, measured."""
