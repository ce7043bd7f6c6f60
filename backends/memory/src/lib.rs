//! The default backend of dev mode: volumes in the state import.
