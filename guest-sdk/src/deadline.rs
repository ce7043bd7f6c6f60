//! The deadline of the call.

use std::time::Duration;

use crate::host;

/// The time until the host ends the call. A limit on computing time may end it earlier. With the grant
/// `deadline`, which is a default.
///
/// ```
/// use std::time::Duration;
///
/// use cofferdam_guest::{deadline, mock};
///
/// let host = mock::MockHost::new().install();
/// host.set_deadline(Duration::from_secs(30));
/// host.advance(Duration::from_secs(10));
/// assert_eq!(deadline::remaining(), Duration::from_secs(20));
/// ```
pub fn remaining() -> Duration {
    Duration::from_millis(host::remaining_ms())
}
