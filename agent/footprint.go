package agent

import (
	"path/filepath"

	"github.com/berth-node/berth/agent/api/socket"
	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/cgroups/kube"
	"github.com/berth-node/berth/systemd"
)

// Places are the files and directories that an agent makes, and what they are for. What is in a directory whose path
// ends with a slash is the directory's own.
func Places(p config.Place) map[string]string {
	out := map[string]string{}
	for _, path := range Stores(p) {
		out[path] = "records of the agent"
	}
	for dir, what := range map[string]string{
		"manifests": "the last good manifests, without Secrets", config.CertDir: "the node's own authority and certificates, and those that a cluster has signed",
		keptDir:       "the API server's pods for a start without it, encrypted (`--offline`)",
		checkpointDir: "checkpoints of containers", "pods": "a directory for each pod: volumes, /etc/hosts, records",
		localDir: "the built-in CSI driver: records and volumes", csiDir: "records of CSI volumes", provisionDir: "records of volumes made for claims",
		pulledDir: "who has pulled which image",
	} {
		out[filepath.Join(p.RootDir, dir)+"/"] = what
		delete(out, filepath.Join(p.RootDir, dir))
	}
	for _, dir := range deviceDirs(p) {
		out[dir+"/"] = "sockets of plugins, as kubelet has them"
	}
	out[filepath.Join(p.RunDir, socket.Name)] = "socket of the API, for root"
	out[filepath.Join(p.RunDir, lockName)] = "lock of the run directory"
	out[filepath.Join(p.RunDir, kube.LayoutFile)] = "where the groups of pods are, for commands"
	out[filepath.Join(p.RunDir, config.PlaceFile)] = "the node's other directories, for `berth purge`"
	out[p.LogDir+"/"] = "logs of containers, a directory for each pod"
	if p.RunDir == config.DefaultRunDir {
		out[filepath.Join(systemd.LoginConfDir, systemd.DelayConf)] = "has logind wait for pods at a shutdown, where a grace period is set"
	}
	return out
}
