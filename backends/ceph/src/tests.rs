//! Tests on the mock host.
