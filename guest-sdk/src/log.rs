//! Log lines in the host's log. The host redacts the secrets of the call and limits the bytes per call. It
//! drops the first line above the limit and all later lines of the call.
//!
//! ```
//! use cofferdam_guest::{log::{self, Level}, mock};
//!
//! let host = mock::MockHost::new().secret("password", "hunter2").install();
//! log::warn("the array is nearly full");
//! log::write(Level::Info, "logged in with hunter2", &[("array", &"a-1"), ("attempt", &2)]);
//! let lines = host.log_lines();
//! assert_eq!((lines[0].level, lines[0].message.as_str()), (Level::Warn, "the array is nearly full"));
//! assert_eq!(lines[1].fields[1], ("attempt".to_owned(), "2".to_owned()));
//! assert!(!lines[1].message.contains("hunter2"));
//! ```

use std::fmt::Display;

pub use crate::bindings::cofferdam::storage::log::Level;
use crate::host;

/// Writes a log line with fields.
pub fn write(level: Level, message: impl Display, fields: &[(&str, &dyn Display)]) {
    let fields: Vec<_> = fields.iter().map(|(key, value)| ((*key).to_owned(), value.to_string())).collect();
    host::log(level, &message.to_string(), &fields);
}

/// Writes a line for developers of the backend.
pub fn debug(message: impl Display) {
    write(Level::Debug, message, &[]);
}

/// Writes a line for operators of the backend.
pub fn info(message: impl Display) {
    write(Level::Info, message, &[]);
}

/// Writes a line about an unexpected condition that the call handled.
pub fn warn(message: impl Display) {
    write(Level::Warn, message, &[]);
}

/// Writes a line about a failure.
pub fn error(message: impl Display) {
    write(Level::Error, message, &[]);
}
