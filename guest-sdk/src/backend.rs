//! The trait that a vendor implements, and its way to the component's exports.

use std::marker::PhantomData;

use crate::{
    CreateRequest, Description, Readiness, Result, ValidateRequest, Validation, Volume,
    bindings::exports::cofferdam::storage::{identity, volumes},
};

/// A storage backend. Its functions have no `self`: nothing survives from one call to the next.
///
/// ```
/// use cofferdam_guest::{
///     Backend, CreateRequest, Description, ErrorKind, Readiness, Result, StorageError, ValidateRequest, Validation,
///     Volume, handle, http::{self, Method, Request, Response}, mock,
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
///     fn create(request: CreateRequest) -> Result<Volume> {
///         let handle = handle::from_name("vol", &request.name);
///         let made = Request::put(url(&handle)?).json(&request.capacity.required_bytes)?.send()?;
///         let made = made.ok_or(|response| match response.status {
///             412 => Some(StorageError::already_exists(format!("{handle:?} has another size"))),
///             _ => None,
///         })?;
///         Ok(Volume::new(handle, made.json()?))
///     }
///
///     fn delete(handle: String) -> Result<()> {
///         let response = Request::delete(url(&handle)?).send()?;
///         if response.status == 404 { Ok(()) } else { response.ok_or(|_| None).map(|_| ()) }
///     }
///
///     fn validate(request: ValidateRequest) -> Result<Validation> {
///         Request::get(url(&request.handle)?).send()?.ok_or(|_| None)?;
///         let shared = request.capabilities.iter().find(|capability| capability.mode.is_multi_node());
///         Ok(match shared {
///             Some(shared) => Validation::Refused(format!("{}: a volume is used on one node", shared.canonical_string())),
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
/// assert_eq!(MyArray::create(CreateRequest::new("a", 4096)).unwrap().handle, "vol-a");
/// assert_eq!(MyArray::create(CreateRequest::new("b", 4096)).unwrap_err().kind, ErrorKind::AlreadyExists);
/// MyArray::delete("vol-x".to_owned()).unwrap();
/// assert!(matches!(MyArray::probe(), Ok(Readiness::Ready)));
/// ```
pub trait Backend {
    /// Says who the backend is: no I/O, the same answer every time.
    fn describe() -> Result<Description>;

    /// Tells whether the backend and its storage can be used now. It is asked often, and without secrets.
    ///
    /// The default says that it can: right for a backend that works with whatever settings it has, and whose
    /// storage tells by the calls themselves when it is away. One that needs a setting looks for it here, so
    /// that a mistake shows before the first volume does not come.
    fn probe() -> Result<Readiness> {
        Ok(Readiness::Ready)
    }

    /// Creates an empty volume, or finds the one that the same call has created before.
    ///
    /// # Errors
    ///
    /// [`StorageError::already_exists`](crate::StorageError::already_exists) when the name exists with other
    /// arguments, and whatever else went wrong.
    fn create(request: CreateRequest) -> Result<Volume>;

    /// Deletes a volume. One that does not exist is a success.
    fn delete(handle: String) -> Result<()>;

    /// Tells whether a volume can be used in all the given ways. There is no default, for only the storage
    /// knows whether the volume is there.
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
