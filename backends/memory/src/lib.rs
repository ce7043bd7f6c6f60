//! The default backend of dev mode: volumes that exist as entries of the `state` import and hold no data.
//!
//! | setting | meaning | default |
//! |---|---|---|
//! | `driver-name` | the driver's name | `memory.cofferdam.dev` |
//! | `capacity` | bytes that all volumes together may have, such as `500Gi` | no limit |
//!
//! A class may set the parameter `label`, a text that every volume of the class carries in its context.
#![forbid(unsafe_code)]

mod request;
mod settings;
mod volumes;

use cofferdam_guest::{
    Backend, CreateRequest, Description, Readiness, Result, ValidateRequest, Validation, Volume, state,
};

use crate::settings::Settings;

/// The backend.
#[derive(Debug)]
pub struct Memory;

impl Backend for Memory {
    fn describe() -> Result<Description> {
        let name = cofferdam_guest::settings::get(settings::DRIVER_NAME);
        let name = name.unwrap_or_else(|| settings::DEFAULT_DRIVER_NAME.to_owned());
        Ok(Description::new(name, env!("CARGO_PKG_VERSION")))
    }

    fn probe() -> Result<Readiness> {
        match Settings::parse(cofferdam_guest::settings::all()) {
            Ok(_) => Ok(Readiness::Ready),
            Err(message) => Ok(Readiness::NotReady(message)),
        }
    }

    fn create(request: CreateRequest) -> Result<Volume> {
        volumes::create(&state::Host, &settings::current()?, request)
    }

    fn delete(handle: String) -> Result<()> {
        volumes::delete(&state::Host, &handle)
    }

    fn validate(request: ValidateRequest) -> Result<Validation> {
        volumes::validate(&state::Host, request)
    }
}

cofferdam_guest::export!(Memory);
