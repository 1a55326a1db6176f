"""What only a notebook shows: this machine, predictions, figures, tables and shown source. Never imported in a rank."""
