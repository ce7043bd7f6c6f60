//! Kinds and constructors of [`StorageError`].

use std::time::Duration;

use crate::{ErrorKind, Finality, StorageError};

impl ErrorKind {
    /// The finality that the constructors of [`StorageError`] set for the kind. `Cancelled` and `Unknown`
    /// have no constructor; their default is [`Finality::Unknown`].
    pub const fn default_finality(self) -> Finality {
        match self {
            Self::Aborted => Finality::InProgress,
            Self::Internal | Self::Unavailable | Self::DeadlineExceeded | Self::Cancelled | Self::Unknown => {
                Finality::Unknown
            }
            Self::InvalidArgument
            | Self::NotFound
            | Self::AlreadyExists
            | Self::PermissionDenied
            | Self::Unauthenticated
            | Self::ResourceExhausted
            | Self::FailedPrecondition
            | Self::OutOfRange
            | Self::Unimplemented
            | Self::DataLoss => Finality::Final,
        }
    }
}

/// Constructors for one kind each, and changes of an error's finality and delay. A constructor's comment says
/// when the error applies, and the [`Finality`] that the constructor sets: final, in progress or unknown.
///
/// ```
/// use cofferdam_guest::{ErrorKind, Finality, StorageError};
///
/// let busy = StorageError::unavailable("the array restarts").retry_after(std::time::Duration::from_secs(9));
/// assert_eq!((busy.kind, busy.finality), (ErrorKind::Unavailable, Finality::Unknown));
/// assert_eq!(busy.without_effect().finality, Finality::Final, "the request was never sent");
/// assert_eq!(StorageError::not_found("no such pool").after_change().finality, Finality::Unknown);
/// ```
impl StorageError {
    /// An error of any kind and finality. Prefer the constructors named for a kind.
    pub fn new(kind: ErrorKind, finality: Finality, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after_ms: None, finality }
    }

    /// The arguments can never succeed. Final.
    pub fn invalid_argument(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, Finality::Final, message)
    }

    /// The volume, snapshot, group, source or node does not exist. Final.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, Finality::Final, message)
    }

    /// The name exists with other arguments, or the volume is published to the node with other arguments.
    /// Final.
    pub fn already_exists(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::AlreadyExists, Finality::Final, message)
    }

    /// The driver lacks a permission on the storage. Final.
    pub fn permission_denied(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::PermissionDenied, Finality::Final, message)
    }

    /// The storage refused the driver's credentials. Final.
    pub fn unauthenticated(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unauthenticated, Finality::Final, message)
    }

    /// Too little space, an exhausted quota, or too many objects. Final.
    pub fn resource_exhausted(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::ResourceExhausted, Finality::Final, message)
    }

    /// The state of the object, or the configuration of the driver, forbids the call. Final.
    pub fn failed_precondition(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::FailedPrecondition, Finality::Final, message)
    }

    /// Another call for the same object is running and may have the same effect. In progress. For an invalid
    /// token of a listing, add [`without_effect`](Self::without_effect).
    pub fn aborted(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Aborted, Finality::InProgress, message)
    }

    /// The driver offers no size in the requested range, or the size of the volume or the source excludes it.
    /// Final.
    pub fn out_of_range(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::OutOfRange, Finality::Final, message)
    }

    /// The driver does not implement the function. Final.
    pub fn unimplemented(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unimplemented, Finality::Final, message)
    }

    /// A defect of the driver or of the storage. The outcome is unknown.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, Finality::Unknown, message)
    }

    /// The storage cannot be reached or used at present. The outcome is unknown. Add
    /// [`without_effect`](Self::without_effect) if the storage did nothing, for example because the request
    /// was never sent.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, Finality::Unknown, message)
    }

    /// The storage did not respond in time. The outcome is unknown.
    pub fn deadline_exceeded(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::DeadlineExceeded, Finality::Unknown, message)
    }

    /// Data is lost beyond recovery. Final.
    pub fn data_loss(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::DataLoss, Finality::Final, message)
    }

    /// The storage is still processing the call, and a retry of the same call returns the result. In
    /// progress, of kind `aborted` as CSI requires.
    pub fn in_progress(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Aborted, Finality::InProgress, message)
    }

    /// The same error with finality final: the call had no effect and will have none.
    #[must_use]
    pub fn without_effect(mut self) -> Self {
        self.finality = Finality::Final;
        self
    }

    /// The same error for a call that has changed something before the error: finality final becomes unknown.
    /// Other finalities remain.
    #[must_use]
    pub fn after_change(mut self) -> Self {
        if self.finality == Finality::Final {
            self.finality = Finality::Unknown;
        }
        self
    }

    /// The same error, with [`after_change`](Self::after_change) applied if this call [has
    /// changed](crate::has_changed) something. The conversions from the errors of the modules `http`, `pool`,
    /// `session` and `state` apply this function. The constructors do not.
    #[must_use]
    pub fn final_unless_changed(self) -> Self {
        if crate::has_changed() { self.after_change() } else { self }
    }

    /// The same error, not final if it is that of a lookup whose kind does not tell whether the item exists:
    /// the storage gave no response, or it refused the lookup itself. An earlier call may have created the
    /// item, and a caller does not clean up after a final error.
    #[must_use]
    pub(crate) fn not_final_without_answer(self) -> Self {
        match self.kind {
            ErrorKind::Internal
            | ErrorKind::Unavailable
            | ErrorKind::DeadlineExceeded
            | ErrorKind::Cancelled
            | ErrorKind::Unknown
            | ErrorKind::PermissionDenied
            | ErrorKind::Unauthenticated => self.after_change(),
            ErrorKind::Aborted
            | ErrorKind::InvalidArgument
            | ErrorKind::NotFound
            | ErrorKind::AlreadyExists
            | ErrorKind::ResourceExhausted
            | ErrorKind::FailedPrecondition
            | ErrorKind::OutOfRange
            | ErrorKind::Unimplemented
            | ErrorKind::DataLoss => self,
        }
    }

    /// The same error with a suggested delay before the caller's next attempt. A delay over 584 million years
    /// is truncated.
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

    #[test]
    fn a_lookup_without_an_answer_is_never_final() {
        let finality = |error: StorageError| error.not_final_without_answer().finality;
        for error in [
            StorageError::unavailable("?").without_effect(),
            StorageError::unauthenticated("?"),
            StorageError::permission_denied("?"),
        ] {
            assert_eq!(finality(error), Finality::Unknown);
        }
        assert_eq!(finality(StorageError::not_found("?")), Finality::Final);
        assert_eq!(finality(StorageError::in_progress("?")), Finality::InProgress);
    }

    #[test]
    fn every_constructor_has_the_default_finality_of_its_kind() {
        type Constructor = fn(&'static str) -> StorageError;
        let constructors: [(ErrorKind, Constructor); 15] = [
            (ErrorKind::InvalidArgument, StorageError::invalid_argument),
            (ErrorKind::NotFound, StorageError::not_found),
            (ErrorKind::AlreadyExists, StorageError::already_exists),
            (ErrorKind::PermissionDenied, StorageError::permission_denied),
            (ErrorKind::Unauthenticated, StorageError::unauthenticated),
            (ErrorKind::ResourceExhausted, StorageError::resource_exhausted),
            (ErrorKind::FailedPrecondition, StorageError::failed_precondition),
            (ErrorKind::Aborted, StorageError::aborted),
            (ErrorKind::Aborted, StorageError::in_progress),
            (ErrorKind::OutOfRange, StorageError::out_of_range),
            (ErrorKind::Unimplemented, StorageError::unimplemented),
            (ErrorKind::Internal, StorageError::internal),
            (ErrorKind::Unavailable, StorageError::unavailable),
            (ErrorKind::DeadlineExceeded, StorageError::deadline_exceeded),
            (ErrorKind::DataLoss, StorageError::data_loss),
        ];
        for (kind, constructor) in constructors {
            let error = constructor("?");
            assert_eq!((error.kind, error.finality), (kind, kind.default_finality()));
        }
    }
}
