//! Leader election among processes under the name of a sidecar.

use std::time::Duration;

use serde_json::json;

use crate::{
    driver::Behavior,
    fixture::{Fixture, LEASE, lease_holder, until},
};

const FLAGS: [&str; 3] =
    ["--leader-election", "--leader-election-namespace=storage", "--leader-election-retry-period=300ms"];

#[tokio::test]
async fn of_two_provisioners_with_leader_election_one_acts() {
    let fixture = Fixture::start(Behavior::default()).await;
    let mut leader = fixture.start_sidecar("csi-provisioner", &FLAGS);
    let lease = fixture.wait_for(LEASE, |lease| !lease_holder(lease).is_empty()).await;
    let _standby = fixture.start_sidecar("csi-provisioner", &FLAGS);
    fixture.create_claim("a").await;
    fixture.wait_for_volume("a").await;

    // SIGTERM: the leader releases the Lease, and the standby takes it.
    leader.signal("TERM");
    let first = lease_holder(&lease);
    fixture.wait_for(LEASE, |lease| !["", first].contains(&lease_holder(lease))).await;
    assert_eq!(leader.wait().await.code(), Some(0));
    fixture.create_claim("b").await;
    fixture.wait_for_volume("b").await;
    assert_eq!(fixture.driver.calls("CreateVolume").len(), 2, "each claim has one volume");
}

#[tokio::test]
async fn a_provisioner_whose_lease_a_stranger_takes_stops_work_until_it_leads_again() {
    let fixture = Fixture::start(Behavior::default()).await;
    let mut process = fixture.start_sidecar("csi-provisioner", &FLAGS);
    fixture.wait_for(LEASE, |lease| !lease_holder(lease).is_empty()).await;
    fixture.create_claim("first").await;
    fixture.wait_for_volume("first").await;
    // The stranger takes the Lease while claims arrive, as a process that ignores the Lease's duration does.
    let arrivals = async {
        for number in 0_u32.. {
            fixture.create_claim(&format!("claim-{number}")).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let take = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let spec = json!({"spec": {"holderIdentity": "stranger", "leaseDurationSeconds": 3600}});
        fixture.patch(LEASE, spec).await;
        let expected = "lease storage/existing-example: \"stranger\" holds it now; this process stops work, and \
                        competes for the lease again";
        until("loss of the Lease in the log", || process.log().contains(expected).then_some(())).await;
    };
    tokio::select! {
        () = arrivals => panic!("claims arrive without an end"),
        () = take => {}
    }
    let calls = || fixture.driver.calls("CreateVolume").len();
    let calls_at_loss = calls();
    fixture.create_claim("last").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(calls(), calls_at_loss);
    assert_eq!(lease_holder(&fixture.get(LEASE).await), "stranger", "it is not released");
    // The same process works again.
    fixture.delete(LEASE).await;
    fixture.wait_for_volume("last").await;
    assert!(process.is_running(), "losing a Lease ends no process");
}

/// A leader that another process deprives of the journal stops work, and leads again after a pause.
#[tokio::test]
async fn a_leader_that_loses_its_journal_begins_another_term() {
    let fixture = Fixture::start(Behavior::default()).await;
    let leases = ["--leader-election", "--leader-election-namespace=storage"];
    let process = fixture.start_sidecar("csi-provisioner", &leases);
    fixture.create_claim("first").await;
    fixture.wait_for_calls("CreateVolume", 1).await;
    let rival = json!({"metadata": {"annotations": {"cofferdam.dev/journal-owner": "rival-1"}}});
    fixture.patch("/api/v1/namespaces/default/configmaps/cofferdam-intents-existing.example-0", rival).await;
    // The next write to the journal finds the rival.
    fixture.create_claim("second").await;
    fixture.wait_for_calls("CreateVolume", 2).await;
    let log = process.log();
    assert!(log.contains("rival-1 has taken the intent journal of driver existing.example"), "{log}");
    assert!(log.contains("competes for the lease again in 15 s"), "{log}");
}
