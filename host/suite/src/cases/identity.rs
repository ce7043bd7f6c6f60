//! Who the driver is.

use cofferdam_backend::Backend as _;
use cofferdam_domain::storage::Readiness;
use cofferdam_wasm::BackendConfig;

use super::case;
use crate::{
    Case,
    bench::Bench,
    check::{Checked, done, failed, same},
};

pub(super) const CASES: &[Case] = &[
    case!(
        "identity/loads",
        "The component loads: a valid name, version, topology keys and features, imports that are granted, first calls that answer.",
        "wit identity.describe; CSI GetPluginInfo",
        [],
        loads
    ),
    case!(
        "identity/same-every-time",
        "The description is the same every time.",
        "wit identity.describe",
        [],
        same_every_time
    ),
    case!("identity/ready", "The driver says that it is ready.", "wit identity.probe; CSI Probe", [], ready),
];

/// That there is a bench says that the component was loaded.
async fn loads(_: &Bench) -> Checked {
    Ok(())
}

async fn same_every_time(bench: &Bench) -> Checked {
    for _ in 0..3 {
        let BackendConfig { settings, limits, .. } = bench.options.config.clone();
        match bench.engine.describe(bench.source.clone(), settings, limits).await {
            Ok(again) => same("the description of the first load", bench.backend.description(), &again)?,
            Err(error) => return failed("identity.describe: success", error.to_string()),
        }
    }
    Ok(())
}

async fn ready(bench: &Bench) -> Checked {
    let readiness = done("probe", bench.settled("probe", || bench.backend.probe(bench.call())).await)?;
    same("readiness", &Readiness::Ready, &readiness)
}
