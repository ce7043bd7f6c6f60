//! What stands in a claim's status while it cannot grow.

use std::time::Duration;

use cofferdam_controllers::Role;
use cofferdam_domain::storage::ErrorKind;
use cofferdam_sim::{
    ApiFault, Fault, Mishap, Resizing, Sign, Simulation,
    UserAction::{Create, Patch, Settle, Until},
    objects::{attributes_class, claim, class, with},
};
use serde_json::{Value, json};

const CLAIM: &str = "/api/v1/namespaces/default/persistentvolumeclaims/a";
const STATUS: &str = "/api/v1/namespaces/default/persistentvolumeclaims/a/status";

/// A claim that asks for what is impossible, while its status is written by somebody else, too; what its status says of that soon
/// afterwards.
async fn soon_after(ask: Value, saying: &'static str, resizing: Resizing, failed: &'static str) -> Value {
    let faults = vec![ApiFault { method: "PATCH", path: STATUS, saying, how: Mishap::Conflict }];
    let simulation =
        Simulation::new(&Role::ALL, Vec::new(), Vec::new()).resizing(resizing).misfortune(faults);
    let user = [
        Create(with(class("gold"), &json!({"allowVolumeExpansion": true}))),
        Create(attributes_class("fast", "9")),
        Create(claim("a", "gold")),
        Settle,
        Patch(CLAIM, json!({"spec": ask})),
        Until(Sign::Event(failed)),
    ];
    let look = async {
        // An hour passes until everything is settled; then it is asked for.
        tokio::time::sleep(Duration::from_secs(3600 + 60)).await;
        simulation.object(CLAIM).await
    };
    let ((outcome, _), found) = tokio::join!(simulation.play(&user, None), look);
    assert_eq!((outcome.faults, outcome.unused), (Vec::new(), Vec::new()));
    found.and_then(|claim| claim.get("status").cloned()).unwrap_or_default()
}

/// Who takes the place of this process has to know, or it asks for the same first.
#[tokio::test(start_paused = true)]
async fn what_is_impossible_is_written_down_whoever_writes_too() {
    let impossible = |kind| vec![Fault::Refuse(kind); 100];
    let growth = Resizing { faults: impossible(ErrorKind::OutOfRange), ..Resizing::default() };
    let ask = json!({"resources": {"requests": {"storage": "2Gi"}}});
    let status = soon_after(ask, "ControllerResizeInfeasible", growth, "a Warning VolumeResizeFailed").await;
    let state = status.pointer("/allocatedResourceStatuses/storage");
    assert_eq!(state, Some(&json!("ControllerResizeInfeasible")));
    let modification =
        Resizing { modify_faults: impossible(ErrorKind::InvalidArgument), ..Resizing::default() };
    let ask = json!({"volumeAttributesClassName": "fast"});
    let status = soon_after(ask, "Infeasible", modification, "a Warning VolumeModifyFailed").await;
    assert_eq!(status.pointer("/modifyVolumeStatus/status"), Some(&json!("Infeasible")));
}
