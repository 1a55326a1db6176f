"""Tools for notebooks: this machine, predictions, figures, tables and source code. Never imported in a rank."""
