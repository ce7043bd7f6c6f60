//! `pool`: directories and disk images in one directory of the host, addressed by plain names.
//!
//! Operations on the pool run on blocking threads. One that has started runs to its end, also after the
//! guest's call has ended. Until then, calls that conflict with that call on a volume or snapshot are
//! rejected.

pub(crate) mod config;
pub(crate) mod store;
mod sys;
mod tree;

use std::sync::Arc;

use cofferdam_backend::CallContext;
use wasmtime::component::HasData;

use self::store::Pool;
use super::workers::Workers;
use crate::{
    bindings::cofferdam::storage::pool::{CopyMode, Host, Item, Page, PoolError, Space},
    failure::task_failure,
    fault_injection::FaultPlan,
};

/// The `pool` import of one call.
pub(crate) struct PoolView<'a> {
    pub(crate) context: &'a CallContext,
    /// Absent without a pool: a component that imports `pool` is not loaded then.
    pub(crate) pool: Option<&'a Arc<Pool>>,
    pub(crate) workers: &'a Workers,
    pub(crate) faults: &'a FaultPlan,
}

impl HasData for PoolView<'static> {
    type Data<'a> = PoolView<'a>;
}

impl PoolView<'_> {
    async fn run_pool_operation<T: Send + 'static>(
        &mut self,
        operation: &'static str,
        work: impl FnOnce(&Pool) -> Result<T, PoolError> + Send + 'static,
    ) -> wasmtime::Result<Result<T, PoolError>> {
        let Some(pool) = self.pool.cloned() else {
            return Ok(Err(PoolError::Failed("no pool is configured".to_owned())));
        };
        let operation_permit = self.context.operation_permit.clone();
        let work = self.workers.run(operation_permit, move || pool.perform(operation, work));
        let failed = |error| wasmtime::Error::msg(format!("the pool failed: {}", task_failure(&error)));
        self.faults.wrap(async move { work.await.map_err(failed) }).await
    }
}

impl Host for PoolView<'_> {
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
