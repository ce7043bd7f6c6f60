//! The metrics of the PersistentVolume controller count the objects of the cluster.

use std::time::Duration;

use cofferdam_controllers::Role;
use cofferdam_sim::{
    Simulation,
    UserAction::{Create, Settle},
    objects::{claim, class, volume, with},
};
use serde_json::json;

#[tokio::test(start_paused = true)]
async fn claims_and_volumes_are_counted_by_phase_and_label() {
    let simulation = Simulation::new(&Role::ALL, Vec::new(), Vec::new());
    let host_path = json!({"spec": {"csi": null, "hostPath": {"path": "/tmp/x"}, "volumeMode": "Block"}});
    let actions = [
        Create(class("gold")),
        Create(claim("a", "gold")),
        Create(claim("b", "gold")),
        Create(claim("c", "silver")),
        Create(with(volume("v", "", "1Gi"), &host_path)),
        Settle,
    ];
    // Half an hour after the start, and before the end of the last Settle.
    let scrape = async {
        tokio::time::sleep(Duration::from_secs(1800)).await;
        simulation.metrics()
    };
    let ((outcome, _), scraped) = tokio::join!(simulation.run(&actions, None), scrape);
    assert_eq!(outcome.violations, [""; 0]);
    let claims = |class: &str| {
        format!("{{namespace=\"default\",storage_class=\"{class}\",volume_attributes_class=\"\"}}")
    };
    for line in [
        format!("pv_collector_bound_pvc_count{} 2", claims("gold")),
        format!("pv_collector_unbound_pvc_count{} 1", claims("silver")),
        "pv_collector_bound_pv_count{storage_class=\"gold\"} 2".to_owned(),
        "pv_collector_unbound_pv_count{storage_class=\"\"} 1".to_owned(),
        "pv_collector_total_pv_count{plugin_name=\"N/A\",volume_mode=\"Filesystem\"} 2".to_owned(),
        "pv_collector_total_pv_count{plugin_name=\"kubernetes.io/host-path\",volume_mode=\"Block\"} 1"
            .to_owned(),
    ] {
        assert!(scraped.lines().any(|found| found == line), "{line} in\n{scraped}");
    }
}
