//! Clock and random bytes.
//!
//! ```
//! use std::time::Duration;
//!
//! use cofferdam_guest::{ambient, mock};
//!
//! let host = mock::MockHost::new().install();
//! let before = ambient::now();
//! host.advance(Duration::from_secs(3));
//! assert_eq!(ambient::now() - before, Duration::from_secs(3));
//! assert_ne!(ambient::random::<16>(), ambient::random::<16>());
//! ```

use std::time::Duration;

use crate::host;

/// Wall clock time since the Unix epoch.
pub fn now() -> Duration {
    Duration::from_millis(host::now_ms())
}

/// Random bytes, suitable for keys and identifiers. `N` is at most 4096; a larger `N` ends the call.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    for (byte, random) in bytes.iter_mut().zip(host::random_bytes(u32::try_from(N).unwrap_or(u32::MAX))) {
        *byte = random;
    }
    bytes
}
