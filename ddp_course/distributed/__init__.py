"""Process groups, meshes, collectives and data, tensor, pipeline, context and expert parallelism."""
