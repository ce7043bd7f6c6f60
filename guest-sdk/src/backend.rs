//! The trait that a storage vendor implements, and its connection to the component's exports.

use std::marker::PhantomData;

use crate::{
    CreateRequest, Description, Readiness, Result, ValidateRequest, Validation, Volume,
    bindings::exports::cofferdam::storage::{identity, volumes},
};

/// A storage backend. The functions have no `self` because every call runs in a fresh instance of the
/// component.
///
/// ```
/// use cofferdam_guest::{
///     Backend, CreateRequest, Description, ErrorKind, Readiness, Result, StorageError, ValidateRequest,
///     Validation, Volume, handle, http::{self, Method, Request, Response}, mock,
/// };
///
/// struct MyArray;
///
/// fn url(handle: &str) -> Result<String> {
///     http::url("http://array", &["volumes", handle])
/// }
///
/// impl Backend for MyArray {
///     fn describe() -> Result<Description> {
///         Ok(Description::new("csi.my-array.example", env!("CARGO_PKG_VERSION")))
///     }
///
///     fn create_volume(request: CreateRequest) -> Result<Volume> {
///         let handle = handle::from_name("vol", &request.name);
///         let made = Request::put(url(&handle)?).json(&request.capacity.required_bytes)?.send()?;
///         let made = made.ok_or(|response| match response.status {
///             412 => Some(StorageError::already_exists(format!("{handle:?} has another size"))),
///             _ => None,
///         })?;
///         Ok(Volume::new(handle, made.json()?))
///     }
///
///     fn delete_volume(handle: String) -> Result<()> {
///         let response = Request::delete(url(&handle)?).send()?;
///         if response.status == 404 { Ok(()) } else { response.ok_or(|_| None).map(|_| ()) }
///     }
///
///     fn validate(request: ValidateRequest) -> Result<Validation> {
///         Request::get(url(&request.handle)?).send()?.ok_or(|_| None)?;
///         let shared = request.capabilities.iter().find(|capability| capability.mode.is_multi_node());
///         Ok(match shared {
///             Some(shared) => {
///                 let capability = shared.canonical_string();
///                 Validation::Refused(format!("{capability}: a volume is used on one node"))
///             }
///             None => Validation::Confirmed,
///         })
///     }
/// }
///
/// let _host = mock::MockHost::new()
///     .on(Method::Put, "http://array/volumes/vol-a", |_| Ok(Response::new(201).with_body("4096")))
///     .on(Method::Put, "http://array/volumes/vol-b", |_| Ok(Response::new(412)))
///     .on(Method::Delete, "http://array/volumes/", |_| Ok(Response::new(404)))
///     .install();
/// assert_eq!(MyArray::create_volume(CreateRequest::new("a", 4096)).unwrap().handle, "vol-a");
/// assert_eq!(MyArray::create_volume(CreateRequest::new("b", 4096)).unwrap_err().kind, ErrorKind::AlreadyExists);
/// MyArray::delete_volume("vol-x".to_owned()).unwrap();
/// assert!(matches!(MyArray::probe(), Ok(Readiness::Ready)));
/// ```
pub trait Backend {
    /// Returns the identity and the features of the backend. An implementation does no I/O and always returns
    /// the same value.
    fn describe() -> Result<Description>;

    /// Returns whether the backend and its storage are ready for calls. The host calls this function often.
    /// It provides the secrets of the operator's configuration, but none from a Secret that a class names.
    ///
    /// The default returns [`Readiness::Ready`]. It suits a backend that accepts any settings and whose calls
    /// fail with [`StorageError::unavailable`](crate::StorageError::unavailable) while the storage is
    /// unreachable. A backend with required settings checks them here, so that a mistake shows before the
    /// first volume is requested.
    fn probe() -> Result<Readiness> {
        Ok(Readiness::Ready)
    }

    /// Creates an empty volume, or returns the volume that an earlier identical call created.
    ///
    /// # Errors
    ///
    /// - [`StorageError::already_exists`](crate::StorageError::already_exists) if the name exists with other
    ///   arguments.
    /// - [`StorageError::out_of_range`](crate::StorageError::out_of_range) if the storage does not offer the
    ///   size.
    /// - [`StorageError::resource_exhausted`](crate::StorageError::resource_exhausted) if there is too little
    ///   space.
    /// - [`StorageError::invalid_argument`](crate::StorageError::invalid_argument) if a parameter is unknown
    ///   or a capability is not supported.
    /// - Any failure of the storage.
    fn create_volume(request: CreateRequest) -> Result<Volume>;

    /// Deletes a volume. Succeeds if the volume does not exist, even if the handle has a form that this
    /// backend never gives to a volume.
    ///
    /// # Errors
    ///
    /// - [`StorageError::failed_precondition`](crate::StorageError::failed_precondition) if the volume is
    ///   published or another object depends on it.
    /// - Any failure of the storage.
    fn delete_volume(handle: String) -> Result<()>;

    /// Returns whether a volume supports all capabilities of the request. There is no default: only the
    /// storage knows whether the volume exists.
    ///
    /// # Errors
    ///
    /// - [`StorageError::not_found`](crate::StorageError::not_found) if the volume does not exist.
    /// - Any failure of the storage.
    fn validate(request: ValidateRequest) -> Result<Validation>;
}

/// Connects a [`Backend`] to the component's exports. Only the expansion of [`export!`](crate::export) uses
/// this type. No value of the type is ever created.
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
        B::create_volume(request)
    }

    fn delete(handle: String) -> Result<()> {
        B::delete_volume(handle)
    }

    fn validate(request: ValidateRequest) -> Result<Validation> {
        B::validate(request)
    }
}
