//! Crash, stale-read and fault injection over roles, on the embedded API and paused time.
