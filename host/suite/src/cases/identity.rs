//! The driver's identity.

use cofferdam_backend::Backend as _;
use cofferdam_domain::storage::Readiness;
use cofferdam_wasm::BackendConfig;

use super::case;
use crate::{
    ConformanceCase,
    check::{CaseResult, expect_equal, expect_success, fail},
    context::SuiteContext,
};

pub(super) const CASES: &[ConformanceCase] = &[
    case!(
        "identity/loads",
        "The component loads: valid name, version, topology keys and features, only granted imports, and \
         working first calls.",
        "wit identity.describe; CSI GetPluginInfo",
        [],
        loads
    ),
    case!(
        "identity/description-is-constant",
        "`describe` always returns the same description.",
        "wit identity.describe",
        [],
        description_is_constant
    ),
    case!(
        "identity/ready",
        "`probe` reports that the driver is ready.",
        "wit identity.probe; CSI Probe",
        [],
        ready
    ),
];

/// Passes: the context exists only if the component was loaded.
async fn loads(_: &SuiteContext) -> CaseResult {
    Ok(())
}

async fn description_is_constant(context: &SuiteContext) -> CaseResult {
    for _ in 0..3 {
        let BackendConfig { settings, limits, .. } = context.options.config.clone();
        match context.engine.describe(context.source.clone(), settings, limits).await {
            Ok(again) => {
                expect_equal("the description of the first load", context.backend.description(), &again)?
            }
            Err(error) => return fail("identity.describe: success", error.to_string()),
        }
    }
    Ok(())
}

async fn ready(context: &SuiteContext) -> CaseResult {
    let readiness = expect_success(
        "probe",
        context.retry_until_final("probe", || context.backend.probe(context.call())).await,
    )?;
    expect_equal("readiness", &Readiness::Ready, &readiness)
}
