//! The trait that a vendor implements, and its way to the component's exports.

use std::marker::PhantomData;

use crate::{
    CreateRequest, Description, Readiness, Result, ValidateRequest, Validation, Volume,
    bindings::exports::cofferdam::storage::{identity, volumes},
};

/// A storage backend. Its functions have no `self`: nothing survives from one call to the next.
pub trait Backend {
    /// Says who the backend is: no I/O, the same answer every time.
    fn describe() -> Result<Description>;

    /// Tells whether the backend and its storage can be used now.
    fn probe() -> Result<Readiness>;

    /// Creates an empty volume, or finds the one that the same call has created before.
    ///
    /// # Errors
    ///
    /// [`StorageError::already_exists`](crate::StorageError::already_exists) when the name exists with other arguments, and
    /// whatever else went wrong.
    fn create(request: CreateRequest) -> Result<Volume>;

    /// Deletes a volume. One that does not exist is a success.
    fn delete(handle: String) -> Result<()>;

    /// Tells whether a volume can be used in all the given ways.
    ///
    /// # Errors
    ///
    /// [`StorageError::not_found`](crate::StorageError::not_found) when there is no such volume.
    fn validate(request: ValidateRequest) -> Result<Validation>;
}

/// Carries a [`Backend`] to the component's exports; [`export!`](crate::export) makes one.
#[derive(Debug)]
pub struct Component<B>(PhantomData<B>);

impl<B: Backend> identity::Guest for Component<B> {
    fn describe() -> Result<Description> {
        B::describe()
    }

    fn probe() -> Result<Readiness> {
        B::probe()
    }
}

impl<B: Backend> volumes::Guest for Component<B> {
    fn create(request: CreateRequest) -> Result<Volume> {
        B::create(request)
    }

    fn delete(handle: String) -> Result<()> {
        B::delete(handle)
    }

    fn validate(request: ValidateRequest) -> Result<Validation> {
        B::validate(request)
    }
}
