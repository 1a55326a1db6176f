"""Parts that trainers of MiniGPT share: settings, data, validation, mixtures of experts, a rank's part on a mesh."""
