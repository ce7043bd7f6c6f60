//! An embedded Kubernetes API for development, tests and simulation; also a tower service.
