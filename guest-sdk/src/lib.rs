//! Write a Cofferdam storage backend in Rust: a trait, typed errors and one export macro.
