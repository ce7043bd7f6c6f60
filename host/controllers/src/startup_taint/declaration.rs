//! Declaration of the startup-taint controller.

use std::sync::Arc;

use cofferdam_backend::Backend;
use cofferdam_domain::{CsiNode, DriverName, Node};
use prometheus_client::registry::Registry;

use super::reconcile::{StartupTaint, StartupTaintContext};
use crate::{
    context::ProcessContext,
    controller::DeclaredController,
    error::ControllerManagerError,
    rbac::{CORE, DriverPlacement, Rule, RuleSet, WATCH_CSI_NODES},
    role::Role,
    settings::Settings,
    watches::WatchSpec,
};

/// The controller's name in `--role`.
pub const ROLE: Role = Role::new("startup-taint");

/// RBAC rules of this controller, in addition to those of every process. RBAC cannot restrict the patch to
/// taints: `render admission-policy` prints a policy that does.
const RULES: &[Rule] = &[Rule::cluster(CORE, "nodes", &["get", "list", "patch", "watch"])];

impl DeclaredController for StartupTaint {
    const ROLE: Role = ROLE;
    const HELP: &'static str =
        "Removes the taint DRIVER/agent-not-ready from nodes where the driver is registered";
    const REPLACES: &'static str = "the removal by the driver's node service";
    const NEEDS_DRIVER: bool = true;
    type Metrics = ();

    fn lease_name(driver: &DriverName) -> String {
        format!("cofferdam-{ROLE}-{driver}")
    }

    fn check(settings: &Settings, backends: &[Arc<dyn Backend>]) -> Result<(), ControllerManagerError> {
        settings.check_no_local_driver(backends, ROLE, "which needs the right to change every node")
    }

    fn watches(_: &Settings, _: &[Arc<dyn Backend>]) -> Vec<WatchSpec> {
        vec![WatchSpec::all::<Node>(), WatchSpec::all::<CsiNode>()]
    }

    fn rbac_rules(_: DriverPlacement) -> RuleSet {
        &[RULES, WATCH_CSI_NODES]
    }

    fn register_metrics(_: &mut Registry) -> Self::Metrics {}

    fn context(process: &ProcessContext, (): ()) -> StartupTaintContext {
        StartupTaintContext {
            cache: Arc::clone(&process.cache),
            writer: process.writer.clone(),
            recorders: process.recorders(ROLE),
            backoff: process.settings.calls.api_backoff(),
            queue_metrics: process.queue_metrics.clone(),
            drivers: process.drivers.keys().cloned().collect(),
        }
    }
}
