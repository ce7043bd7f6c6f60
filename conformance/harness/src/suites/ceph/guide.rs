//! The guide `docs/ceph.md`, followed from a Ceph cluster to a pod's data: the commands and files are those of the
//! page. kubelet of the node with the volumes runs in a machine, whose kernel maps the images; the driver's pod runs
//! on a node of this machine.

use std::{
    fs,
    net::Ipv4Addr,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{LoopbackAddress, ensure_empty};
use crate::{
    account::Kubectl,
    ceph::CephCluster,
    control_plane::{ApiUser, ControlPlane},
    machine::{Machine, MachineKubelet, MachineNetwork, MachineSystem},
    node::KubeletNode,
    pod,
    process::run_to_completion,
    run::SuiteRun,
    suites::{
        install::{self, helm::source_directory, images},
        network::{
            disk,
            node::{NODE, ROOT},
        },
    },
    wait::until,
};

const PAGE: &str = "docs/ceph.md";
/// Address of the cluster. The suite `ceph` has another one.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
/// Time limit of a wait.
const TIMEOUT: Duration = Duration::from_secs(240);
/// Size of the machine's disk in bytes, which holds containers and images.
const DISK_BYTES: u64 = 8 << 30;
/// Values of the page that are those of an example, and the commands and files that contain them.
const EXAMPLE_NETWORK: &str = "10.0.0.0/24";
const EXAMPLE_FSID: &str = "0f6d1e52-3f3c-4e0a-9d0e-3f5f2f1b7a10";
/// Host of the dashboard's URL.
const EXAMPLE_HOST: &str = "ceph.example";
/// The node's namespace of the release.
const NODE_NAMESPACE: &str = "storage-node";
/// Size of the volume after its growth in KiB, less what the filesystem keeps for itself.
const GROWN_KIBIBYTES: u32 = 1_800_000;

pub(in crate::suites) async fn run(run: &SuiteRun) -> Result<()> {
    let _address = LoopbackAddress::add(ADDRESS).await?;
    let prepare_machine = async {
        let archive = images::write(run).await?;
        let disks = [disk(run, "node", DISK_BYTES)?];
        MachineKubelet::write_disk(run, &disks[0], &[&archive]).await?;
        let system = MachineSystem::prepare_with(run, &MachineKubelet::programs(run)?).await?;
        let machine = Machine::start(run, &system, NODE, MachineNetwork::new(run)?, 1, &disks).await?;
        anyhow::Ok((machine, archive))
    };
    let (ceph, (plane, controller_node), (machine, archive)) =
        tokio::try_join!(CephCluster::start(run, ADDRESS), install::start_cluster(run), prepare_machine)?;
    let guide = Guide::new(run, &plane, &ceph)?;
    let start_kubelet = MachineKubelet::start(run, &plane, &machine, NODE, ROOT);
    let (kubelet, (), ()) =
        tokio::try_join!(start_kubelet, controller_node.import_images(run, &archive), guide.serve_tls())?;
    // The commands of the section "Nodes", as far as they apply to a node that does not boot again.
    machine.shell("modprobe rbd").await?;
    guide.install(&plane).await?;
    run.add_note("the release of the guide is available")?;
    guide.use_claim(&ceph).await?;
    guide.reject_key(&ceph).await?;
    guide.uninstall().await?;
    kubelet.wait_without_pods(TIMEOUT).await?;
    let mapped = machine.shell("ls /sys/bus/rbd/devices").await?;
    ensure!(mapped.is_empty(), "mapped: {mapped}");
    stop(run, ceph, plane, controller_node).await
}

async fn stop(run: &SuiteRun, ceph: CephCluster, plane: ControlPlane, node: KubeletNode) -> Result<()> {
    node.wait_idle(run, TIMEOUT).await?;
    node.stop().await?;
    plane.stop().await?;
    ceph.stop().await
}

/// The page, and a directory in which its commands run.
struct Guide<'a> {
    run: &'a SuiteRun,
    page: String,
    /// Below the root of Ceph, so that its programs find the files.
    directory: PathBuf,
    kubectl: Kubectl,
    /// Directories of programs.
    path: String,
    kubeconfig: String,
    fsid: String,
    monitor: String,
    /// The dashboard's port.
    port: u16,
}

impl<'a> Guide<'a> {
    fn new(run: &'a SuiteRun, plane: &ControlPlane, ceph: &CephCluster) -> Result<Self> {
        let page = source_directory().join(PAGE);
        let page = fs::read_to_string(&page).with_context(|| format!("cannot read {}", page.display()))?;
        let directory = ceph.root().join("guide");
        let programs = run.scratch().join("guide-programs");
        fs::create_dir_all(&directory)?;
        fs::create_dir_all(&programs)?;
        let root = ceph.root().display();
        let wrapper = format!("#!/bin/sh\nexec unshare --root={root} --wd=/guide ceph \"$@\"\n");
        let file = programs.join("ceph");
        fs::write(&file, wrapper)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
        symlink(run.program(), programs.join("cofferdam"))?;
        let peers = run.peers().directory().display();
        Ok(Self {
            run,
            page,
            directory,
            kubectl: Kubectl::new(run, plane)?,
            path: format!("{}:{peers}:/usr/sbin:/usr/bin:/sbin:/bin", programs.display()),
            kubeconfig: plane.kubeconfig(ApiUser::Admin)?.display().to_string(),
            fsid: ceph.fsid().to_owned(),
            monitor: ceph.monitor(),
            port: run.free_port()?,
        })
    }

    /// The text of a section without its heading.
    fn section(&self, heading: &str) -> Result<&str> {
        let start = format!("\n## {heading}\n");
        let (_, rest) = self.page.split_once(&start).with_context(|| format!("{PAGE} has no {start:?}"))?;
        Ok(rest.split("\n## ").next().unwrap_or_default())
    }

    /// The code blocks of a section in a language, in their order, with the values of this cluster.
    fn blocks(&self, heading: &str, language: &str) -> Result<Vec<String>> {
        let text = |block: &str| {
            block
                // The cluster has no DNS.
                .replace(&format!("DNS:{EXAMPLE_HOST}"), &format!("IP:{ADDRESS}"))
                .replace(&format!("{EXAMPLE_HOST}:8443"), &format!("{ADDRESS}:{}", self.port))
                .replace(EXAMPLE_NETWORK, &format!("{ADDRESS}/32"))
                .replace(EXAMPLE_FSID, &self.fsid)
        };
        Ok(code_blocks(self.section(heading)?, language).iter().map(|block| text(block)).collect())
    }

    /// Runs commands of the page in the directory.
    async fn shell(&self, script: &str) -> Result<String> {
        let directory = format!("--chdir={}", self.directory.display());
        let variables = [format!("PATH={}", self.path), format!("KUBECONFIG={}", self.kubeconfig)];
        let home = format!("HOME={}", self.run.scratch().join("guide-home").display());
        let [path, kubeconfig] = &variables;
        let arguments = [directory.as_str(), path, kubeconfig, &home, "sh", "-ec", script];
        run_to_completion("env", &arguments).await.with_context(|| format!("commands of {PAGE}: {script}"))
    }

    /// Gives the dashboard the certificate of the section "In Ceph", and waits until it serves with TLS at the
    /// cluster's address.
    async fn serve_tls(&self) -> Result<()> {
        let blocks = self.blocks("In Ceph", "console")?;
        let commands = blocks.iter().find(|block| block.contains("openssl")).context("no certificate")?;
        let port = self.port;
        let configure = format!(
            "ceph config set mgr mgr/dashboard/ssl true
             ceph config set mgr mgr/dashboard/server_addr {ADDRESS}
             ceph config set mgr mgr/dashboard/ssl_server_port {port}"
        );
        self.shell(&configure).await?;
        self.shell(commands).await?;
        fs::copy(self.directory.join("dashboard.crt"), self.directory.join("ceph-ca.pem"))?;
        until("the dashboard serves with TLS", TIMEOUT, async || {
            let services = self.shell("ceph mgr services").await?;
            let url = format!("https://{ADDRESS}:{port}");
            ensure!(services.contains(&url), "{services}: expected {url}");
            Ok(())
        })
        .await
    }

    /// Follows the section "Install it in a cluster".
    async fn install(&self, plane: &ControlPlane) -> Result<()> {
        let section = "Install it in a cluster";
        let target = self.directory.join("target/wasm32-wasip2/release");
        fs::create_dir_all(&target)?;
        fs::write(target.join("cofferdam_backend_ceph.wasm"), cofferdam_test_guests::CEPH)?;
        symlink(source_directory().canonicalize()?.join("deploy"), self.directory.join("deploy"))?;
        fs::copy(self.directory.join("../etc/ceph/password"), self.directory.join("password"))?;
        let [create, install] =
            <[String; 2]>::try_from(self.blocks(section, "console")?).map_err(|blocks| {
                anyhow::anyhow!("{section} has {} blocks of commands: expected 2", blocks.len())
            })?;
        let values = self.blocks(section, "yaml")?.pop().context("no values")?;
        fs::write(self.directory.join("values.yaml"), values)?;
        fs::write(self.directory.join("local.yaml"), self.local_values(plane)?.to_string())?;
        self.shell(&create).await?;
        self.shell(&format!("{} --values local.yaml", install.trim_end())).await?;
        for (kind, namespace) in [("deployment", "storage"), ("daemonset", NODE_NAMESPACE)] {
            let wait = format!(
                "kubectl --namespace {namespace} rollout status {kind} --selector app.kubernetes.io/instance=ceph \
                 --timeout={}s",
                TIMEOUT.as_secs()
            );
            let waited = self.shell(&wait).await;
            if waited.is_err() {
                let state = format!(
                    "kubectl --namespace {namespace} describe pods | tail -n 30
                     kubectl --namespace {namespace} logs --selector app.kubernetes.io/instance=ceph --tail 20"
                );
                let state = self.shell(&state).await.unwrap_or_default();
                waited.context(state)?;
            }
        }
        let registered = "kubectl get csinode machine --output jsonpath={.spec.drivers[*].name}";
        until("kubelet has registered the driver", TIMEOUT, async || {
            let drivers = self.shell(registered).await?;
            ensure!(drivers.contains("ceph.cofferdam.dev"), "it knows {drivers:?}");
            Ok(())
        })
        .await
    }

    /// What a cluster of this suite needs in addition to the page: the images, the address of the API server, where
    /// pods run, and the ports of the dashboard and the monitor, which are not the usual ones.
    fn local_values(&self, plane: &ControlPlane) -> Result<Value> {
        let address = plane.pod_address().context("pods do not reach the API server")?;
        let (_, port) = self.monitor.rsplit_once(':').context("a monitor without a port")?;
        let port: u16 = port.parse()?;
        Ok(json!({
            "image": {"repository": images::REPOSITORY, "tag": install::VERSIONS[0]},
            "kubernetes": {"serviceHost": address.ip().to_string(), "servicePort": address.port()},
            "driver": {"origins": [{
                "origin": format!("https://{ADDRESS}:{}", self.port),
                "ca-file": "/etc/ceph-ca/ca.pem",
                "addresses": [ADDRESS],
            }]},
            "controller": {"nodeSelector": {"kubernetes.io/hostname": install::NODE}},
            "node": {
                "nodeSelector": {"kubernetes.io/hostname": NODE},
                "settings": {"node": {"rbd": [{
                    "networks": [format!("{ADDRESS}/32")],
                    "ports": [port],
                    "cluster-fsids": [self.fsid],
                    "pools": ["rbd"],
                }]}},
            },
        }))
    }

    /// Creates the claim of the page. A pod writes to its volume and uses it while it grows, and the next pod reads.
    async fn use_claim(&self, ceph: &CephCluster) -> Result<()> {
        let blocks = self.blocks("The driver", "yaml")?;
        let objects =
            blocks.iter().find(|block| block.contains("PersistentVolumeClaim")).context("no claim")?;
        let (_, claim) = objects.split_once("---\n").context("no class and claim")?;
        fs::write(self.directory.join("claim.yaml"), claim)?;
        self.shell("kubectl apply -f claim.yaml").await?;
        let size = "df -k /volume | tail -n 1 | tr -s ' ' | cut -d ' ' -f 2";
        let write = format!(
            "echo data > /volume/file; sync; echo written
             until [ $({size}) -gt {GROWN_KIBIBYTES} ]; do sleep 1; done"
        );
        self.create_pod("writer", "data", &write).await?;
        self.wait_pod("writer", "Running").await?;
        let image = ceph.rbd(&["ls", "--pool", "rbd"]).await?;
        ensure!(image.contains("cofferdam-vol-pvc-"), "the pool has {image:?}");
        let grow =
            r#"kubectl patch pvc data --patch '{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}'"#;
        self.shell(grow).await?;
        self.wait_pod("writer", "Succeeded").await?;
        self.delete_pod("writer").await?;
        self.create_pod("reader", "data", "grep -x data /volume/file").await?;
        self.wait_pod("reader", "Succeeded").await?;
        self.delete_pod("reader").await?;
        self.delete_claim(ceph, "data").await?;
        self.run.add_note("a pod's data was written, grown online, and read by the next pod")
    }

    /// With a wrong key in the Secret of the nodes, an event of the pod says so, without the key.
    async fn reject_key(&self, ceph: &CephCluster) -> Result<()> {
        // A key of Ceph: type, time, length and 16 bytes.
        let key = "AQAAAAAAAAAAABAAAAECAwQFBgcICQoLDA0ODw==";
        let set = format!(
            "kubectl --namespace storage create secret generic ceph-node --dry-run=client --output yaml \
             --from-literal userID=cofferdam-node --from-literal userKey={key} | kubectl apply -f -
             kubectl apply -f claim.yaml"
        );
        self.shell(&set).await?;
        self.create_pod("rejected", "data", "true").await?;
        let events = "kubectl get events --field-selector involvedObject.name=rejected,reason=FailedMount \
                      --output jsonpath={.items[*].message}";
        let events = until("an event names the wrong key", TIMEOUT, async || {
            let events = self.shell(events).await?;
            let has_error = events.contains("cannot be mapped") && events.contains("cofferdam-node");
            ensure!(has_error, "{events:?}");
            Ok(events)
        })
        .await?;
        ensure!(!events.contains(key), "an event has the key");
        self.run.add_note(&format!("kubelet's event for a wrong key: {events}"))?;
        self.delete_pod("rejected").await?;
        self.delete_claim(ceph, "data").await
    }

    /// Uninstalls the release when no volume is left.
    async fn uninstall(&self) -> Result<()> {
        until("no volume is left", TIMEOUT, async || {
            let left = self.shell("kubectl get pv --output name").await?;
            ensure!(left.is_empty(), "{left}");
            Ok(())
        })
        .await?;
        self.shell("helm uninstall ceph --namespace storage --wait").await.map(drop)
    }

    /// Deletes a claim, and waits until Ceph has no image.
    async fn delete_claim(&self, ceph: &CephCluster, claim: &str) -> Result<()> {
        self.shell(&format!("kubectl delete pvc {claim}")).await?;
        until("the image is deleted", TIMEOUT, async || ensure_empty(ceph, "the deletion").await).await
    }

    /// Creates a pod on the machine that runs a script with a claim.
    async fn create_pod(&self, name: &str, claim: &str, script: &str) -> Result<()> {
        let selector = json!({ "kubernetes.io/hostname": NODE });
        let pod = pod::on_machine(pod::with_claim(name, claim, script), ("nodeSelector", selector));
        let file = self.directory.join(format!("{name}.json"));
        fs::write(&file, pod.to_string())?;
        self.kubectl.run(&["apply", "--filename", &file.display().to_string()]).await.map(drop)
    }

    async fn wait_pod(&self, name: &str, phase: &str) -> Result<()> {
        until(&format!("the pod {name} is {phase}"), TIMEOUT, async || {
            let found = self.kubectl.run(&["get", "pod", name, "--output=jsonpath={.status.phase}"]).await?;
            let of_pod = format!("involvedObject.name={name},type=Warning");
            let events = ["get", "events", "--field-selector", &of_pod];
            ensure!(found == phase, "it is {found}: {}", self.kubectl.run(&events).await?);
            Ok(())
        })
        .await
    }

    async fn delete_pod(&self, name: &str) -> Result<()> {
        self.kubectl.run(&["delete", "pod", name, "--wait"]).await.map(drop)
    }
}

/// The code blocks of a Markdown text in a language, without the indentation of their fences.
fn code_blocks(text: &str, language: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for line in text.lines() {
        let content = line.trim_start();
        match &mut open {
            Some((_, block)) if content == "```" => {
                blocks.push(std::mem::take(block));
                open = None;
            }
            Some((indent, block)) => {
                block.push_str(line.get(*indent..).unwrap_or_default());
                block.push('\n');
            }
            None if content.strip_prefix("```") == Some(language) => {
                open = Some((line.len() - content.len(), String::new()));
            }
            None => {}
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_lose_the_indentation_of_their_list() {
        let text = "1. A\n\n   ```console\n   one \\\n     two\n   ```\n\n   ```yaml\n   a: 1\n   ```\n";
        assert_eq!(code_blocks(text, "console"), ["one \\\n  two\n"]);
        assert_eq!(code_blocks(text, "yaml"), ["a: 1\n"]);
    }
}
