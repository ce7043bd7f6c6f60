//! Core dumps of the process. Its memory contains the Secrets of driver calls, also for some time after a
//! call.

use std::io;

/// Excludes the process from core dumps, also from those that the kernel pipes to a program. Only root can
/// then trace the process or read its memory.
///
/// # Errors
/// If the kernel refuses it.
#[cfg(target_os = "linux")]
pub(crate) fn disable() -> io::Result<()> {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};

    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Other systems than Linux have no such setting.
///
/// # Errors
/// Never.
#[cfg(not(target_os = "linux"))]
pub(crate) fn disable() -> io::Result<()> {
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::process::{DumpableBehavior, dumpable_behavior};

    #[test]
    fn the_process_is_not_dumpable() {
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::Dumpable);
        crate::core_dumps::disable().unwrap();
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
    }
}
