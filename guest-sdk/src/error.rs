//! Constructors of failures. Each chooses the finality that its kind has when it is used for what it means.

use std::time::Duration;

use crate::{ErrorKind, Finality, StorageError};

/// ```
/// use cofferdam_guest::{ErrorKind, Finality, StorageError};
///
/// let busy = StorageError::unavailable("the array restarts").retry_after(std::time::Duration::from_secs(9));
/// assert_eq!((busy.kind, busy.finality), (ErrorKind::Unavailable, Finality::Unknown));
/// assert_eq!(busy.without_effect().finality, Finality::Final, "the request was never sent");
/// assert_eq!(StorageError::not_found("no such pool").after_change().finality, Finality::Unknown);
/// ```
impl StorageError {
    /// A failure of any kind and finality; the constructors named for a kind are safer.
    pub fn new(kind: ErrorKind, finality: Finality, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after_ms: None, finality }
    }

    /// The arguments can never succeed. Final.
    pub fn invalid_argument(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, Finality::Final, message)
    }

    /// The volume does not exist. Final.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, Finality::Final, message)
    }

    /// The name exists with other arguments. Final.
    pub fn already_exists(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::AlreadyExists, Finality::Final, message)
    }

    /// The driver lacks a right on the storage. Final.
    pub fn permission_denied(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::PermissionDenied, Finality::Final, message)
    }

    /// The storage refused the driver's credentials. Final.
    pub fn unauthenticated(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unauthenticated, Finality::Final, message)
    }

    /// No space, no quota, or too many of something. Final.
    pub fn resource_exhausted(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::ResourceExhausted, Finality::Final, message)
    }

    /// The volume is in a state that forbids the call. Final.
    pub fn failed_precondition(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::FailedPrecondition, Finality::Final, message)
    }

    /// Another call for the same volume is running, and may do what this one was asked for. In progress.
    pub fn aborted(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Aborted, Finality::InProgress, message)
    }

    /// A size outside of what the driver offers. Final.
    pub fn out_of_range(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::OutOfRange, Finality::Final, message)
    }

    /// The driver does not have this function. Final.
    pub fn unimplemented(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unimplemented, Finality::Final, message)
    }

    /// A defect of the driver or of the storage. The outcome is unknown.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, Finality::Unknown, message)
    }

    /// The storage cannot be reached. The outcome is unknown; say
    /// [`nothing_happened`](Self::nothing_happened) when the request was never sent.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, Finality::Unknown, message)
    }

    /// The storage has not answered in time. The outcome is unknown.
    pub fn deadline_exceeded(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::DeadlineExceeded, Finality::Unknown, message)
    }

    /// Data is lost beyond recovery. Final.
    pub fn data_loss(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::DataLoss, Finality::Final, message)
    }

    /// The storage works on it: the same call again tells. In progress, of kind `aborted`, as CSI wants it.
    pub fn in_progress(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Aborted, Finality::InProgress, message)
    }

    /// The same failure with the certainty that nothing happened and nothing will.
    #[must_use]
    pub fn without_effect(mut self) -> Self {
        self.finality = Finality::Final;
        self
    }

    /// The same failure without the certainty: something was changed before it, so that final becomes
    /// unknown.
    #[must_use]
    pub fn after_change(mut self) -> Self {
        if self.finality == Finality::Final {
            self.finality = Finality::Unknown;
        }
        self
    }

    /// The same failure, [after a change](Self::after_change) if this call has [made](crate::changed) one.
    /// What the SDK itself converts has gone through this; the constructors do not, for they are the
    /// backend's own word.
    #[must_use]
    pub fn final_unless_changed(self) -> Self {
        if crate::has_changed() { self.after_change() } else { self }
    }

    /// The same failure with a wish for the next try. Longer than 584 million years is cut.
    #[must_use]
    pub fn retry_after(mut self, pause: Duration) -> Self {
        self.retry_after_ms = Some(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constructor_chooses_kind_and_finality() {
        let full = StorageError::resource_exhausted("no space").retry_after(Duration::from_secs(2));
        assert_eq!(
            (full.kind, full.finality, full.retry_after_ms),
            (ErrorKind::ResourceExhausted, Finality::Final, Some(2000))
        );
        assert_eq!(StorageError::internal("?").finality, Finality::Unknown);
        assert_eq!(StorageError::unavailable("?").without_effect().finality, Finality::Final);
        assert_eq!(StorageError::in_progress("?").finality, Finality::InProgress);
    }
}
