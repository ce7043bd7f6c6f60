//! A transport that reverses the order of writes that are sent at the same time, in paused time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use http::{Method, Request};
use kube::client::Body;
use tokio::time::sleep;
use tower::ServiceExt as _;

use super::ApiTransport;

/// Difference between the delays of two writes.
const STEP: Duration = Duration::from_millis(1);
/// Number of writes at the same time whose order is reversed.
const MAX_WRITES: u32 = 8;

/// A write that is held back.
struct HeldWrite(Arc<AtomicU32>);

impl Drop for HeldWrite {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Holds back each write, the first of several the longest. Reads are not delayed.
pub(crate) fn reversed_writes(api: ApiTransport) -> ApiTransport {
    let held = Arc::new(AtomicU32::new(0));
    ApiTransport::new(tower::service_fn(move |request: Request<Body>| {
        let (api, held) = (api.clone(), Arc::clone(&held));
        let send: BoxFuture<'static, _> = Box::pin(async move {
            if request.method() != Method::GET {
                let before = held.fetch_add(1, Ordering::SeqCst);
                let _held = HeldWrite(held);
                sleep(STEP * MAX_WRITES.saturating_sub(before)).await;
            }
            api.oneshot(request).await
        });
        send
    }))
}
