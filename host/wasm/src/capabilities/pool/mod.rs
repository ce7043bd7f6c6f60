//! `pool`: one directory of the host, by plain names.
//!
//! Operations run on blocking threads. An operation that has started runs to its end and stays in flight
//! until then, also after its call has ended.

mod store;
mod sys;
mod tree;

use std::{fmt, path::PathBuf};

use cofferdam_domain::quantity::Quantity;
use serde::{Deserialize, Deserializer, Serialize, de};

pub(crate) use self::store::Pool;
use super::Capabilities;
use crate::bindings::cofferdam::storage::pool::{CopyMode, Host, Item, Page, PoolError, Space};

/// A backend's pool: `[backend.NAME.pool]`. It grants the import `pool`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PoolConfig {
    /// The directory. It must exist, and only this backend may use it.
    pub directory: PathBuf,
    /// Maximum bytes of all images together, each with its full size; the filesystem's size if absent.
    #[serde(default, deserialize_with = "deserialize_bytes")]
    pub capacity: Option<u64>,
    /// Bytes that one image may have; absent leaves it to the capacity.
    #[serde(default, deserialize_with = "deserialize_bytes")]
    pub image_bytes_max: Option<u64>,
}

/// Reads a number of bytes, or a quantity as Kubernetes writes it.
fn deserialize_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    struct Visitor;
    impl de::Visitor<'_> for Visitor {
        type Value = u64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a number of bytes, or a text such as \"100Gi\"")
        }

        fn visit_u64<E: de::Error>(self, value: u64) -> Result<u64, E> {
            Ok(value)
        }

        fn visit_i64<E: de::Error>(self, value: i64) -> Result<u64, E> {
            u64::try_from(value).map_err(|_| E::invalid_value(de::Unexpected::Signed(value), &self))
        }

        fn visit_str<E: de::Error>(self, value: &str) -> Result<u64, E> {
            let quantity = Quantity::parse(value).map_err(E::custom)?;
            quantity.to_csi_bytes().ok_or_else(|| E::custom(format!("{value:?} is more than 2^63 - 1 bytes")))
        }
    }
    deserializer.deserialize_any(Visitor).map(Some)
}

impl Capabilities {
    async fn run_pool_operation<T: Send + 'static>(
        &mut self,
        operation: &'static str,
        work: impl FnOnce(&Pool) -> Result<T, PoolError> + Send + 'static,
    ) -> wasmtime::Result<Result<T, PoolError>> {
        // A component that imports a pool is not loaded without one.
        let Some(pool) = self.pool.clone() else {
            return Ok(Err(PoolError::Failed("no pool is configured".to_owned())));
        };
        let operation_permit = self.context.operation_permit.clone();
        let work = self.pool_workers.run(operation_permit, move || pool.perform(operation, work));
        let failed = |error| wasmtime::Error::msg(format!("the pool failed: {error}"));
        self.faults.wrap(async move { work.await.map_err(failed) }).await
    }
}

impl Host for Capabilities {
    async fn create_directory(&mut self, name: String) -> wasmtime::Result<Result<(), PoolError>> {
        self.run_pool_operation("create-directory", move |pool| pool.create_directory(&name)).await
    }

    async fn create_image(&mut self, name: String, size: u64) -> wasmtime::Result<Result<(), PoolError>> {
        self.run_pool_operation("create-image", move |pool| pool.create_image(&name, size)).await
    }

    async fn remove(&mut self, name: String) -> wasmtime::Result<Result<(), PoolError>> {
        self.run_pool_operation("remove", move |pool| pool.remove(&name)).await
    }

    async fn grow(&mut self, name: String, size: u64) -> wasmtime::Result<Result<(), PoolError>> {
        self.run_pool_operation("grow", move |pool| pool.grow(&name, size)).await
    }

    async fn copy(
        &mut self,
        source: String,
        name: String,
        size: Option<u64>,
        mode: CopyMode,
    ) -> wasmtime::Result<Result<(), PoolError>> {
        self.run_pool_operation("copy", move |pool| pool.copy(&source, &name, size, mode)).await
    }

    async fn measure(&mut self, name: String) -> wasmtime::Result<Result<Item, PoolError>> {
        self.run_pool_operation("measure", move |pool| pool.measure(&name)).await
    }

    async fn scan(
        &mut self,
        prefix: String,
        after: Option<String>,
        limit: u32,
    ) -> wasmtime::Result<Result<Page, PoolError>> {
        self.run_pool_operation("scan", move |pool| Ok(pool.scan(&prefix, after.as_deref(), limit))).await
    }

    async fn usage(&mut self) -> wasmtime::Result<Result<Space, PoolError>> {
        self.run_pool_operation("usage", Pool::usage).await
    }
}
