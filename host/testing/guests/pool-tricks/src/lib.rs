//! A backend whose create performs one operation on its pool, with any arguments. The parameters of the
//! create select the operation and its arguments.
#![forbid(unsafe_code)]

use cofferdam_guest::{
    Backend, CreateRequest, Description, Readiness, Result, StorageError, ValidateRequest, Validation,
    Volume,
    pool::{self, CopyMode, Pool as _, PoolError},
};

struct PoolTricks;

cofferdam_guest::export!(PoolTricks);

impl Backend for PoolTricks {
    fn describe() -> Result<Description> {
        Ok(Description::new("pool-tricks.example", "1"))
    }

    fn probe() -> Result<Readiness> {
        Ok(Readiness::Ready)
    }

    /// The parameter `do` is the operation: a scan if it is absent or unknown. The parameters `name` and
    /// `source` and the required size are its arguments. The volume's handle is the result: `ok`, or the name
    /// of the error.
    fn create_volume(request: CreateRequest) -> Result<Volume> {
        let parameters = cofferdam_guest::to_map(request.parameters);
        let parameter = |key: &str| parameters.get(key).map(String::as_str).unwrap_or_default();
        // Names that no parameter can contain.
        let made_up = |key: &str| match parameter(key) {
            "LONG" => "n".repeat(10_000),
            "NUL" => "a\0b".to_owned(),
            name => name.to_owned(),
        };
        let name = made_up("name");
        let size = request.capacity.required_bytes.unwrap_or_default();
        let outcome = match parameter("do") {
            "create-directory" => pool::HostPool.create_directory(&name),
            "create-image" => pool::HostPool.create_image(&name, size),
            "remove" => pool::HostPool.remove(&name),
            "grow" => pool::HostPool.grow(&name, size),
            "copy" => pool::HostPool.copy(&made_up("source"), &name, None, CopyMode::NotAtomic),
            "measure" => pool::HostPool.measure(&name).map(drop),
            _ => pool::HostPool.scan(&name, Some(&name), u32::MAX).map(drop),
        };
        let handle = match outcome {
            Ok(()) => "ok",
            Err(PoolError::InvalidName(_)) => "invalid-name",
            Err(PoolError::Exists(_)) => "exists",
            Err(PoolError::Missing(_)) => "missing",
            Err(PoolError::WrongKind(_)) => "wrong-kind",
            Err(PoolError::InvalidSize(_)) => "invalid-size",
            Err(PoolError::NoSpace(_)) => "no-space",
            Err(PoolError::Busy(_)) => "busy",
            Err(PoolError::Failed(_)) => "failed",
            Err(PoolError::Unsupported(_)) => "unsupported",
            Err(PoolError::Unknown(_)) => "unknown",
        };
        Ok(Volume::new(handle, size.max(1)))
    }

    fn delete_volume(_handle: String) -> Result<()> {
        Ok(())
    }

    fn validate(request: ValidateRequest) -> Result<Validation> {
        Err(StorageError::not_found(format!("there is no volume {:?}", request.handle)))
    }
}
