"""What the trainers of MiniGPT share: settings, data and validation, mixtures of experts, a rank's part on a mesh."""
