package config

import (
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-node/berth/internal/quantity"
)

// AddFlags adds the flags of the place to fs. The run directory's is not among them: every command has it.
func (p *Place) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&p.RootDir, "root-dir", p.RootDir, "images, snapshots, records and volumes")
	fs.StringVar(&p.LogDir, "log-dir", p.LogDir, "logs of the containers")
	fs.StringVar(&p.CgroupRoot, "cgroup-root", p.CgroupRoot, "cgroup that the pods' groups are made under")
	fs.StringVar(&p.CgroupDriver, "cgroup-driver", p.CgroupDriver,
		"who makes the groups: cgroupfs, or systemd, which then has a slice for each pod (default what the runtime of "+
			"--runtime says, else cgroupfs)")
	fs.StringVar(&p.BridgeName, "bridge-name", p.BridgeName, "bridge of the built-in pod network")
	fs.TextVar(&p.PodCIDR, "pod-cidr", p.PodCIDR, "addresses of the built-in pod network")
	fs.StringVar(&p.KubeletDir, "kubelet-dir", p.KubeletDir,
		"directory with the sockets that plugins look for: device-plugins, plugins_registry and pod-resources (default "+
			"that of --root-dir; plugins that were told nothing look in "+DefaultKubeletDir+")")
	fs.StringVar(&p.Helper, "helper", p.Helper,
		"helper program that starts containers (default berth-helper beside this program)")
}

// AddFlags adds the flags of the embedded runtime to fs.
func (e *Embedded) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&e.ImageDir, "image-dir", e.ImageDir, "image archives that are imported at start (empty: none)")
	fs.StringVar(&e.Network, "network", e.Network,
		"network of pods: builtin, cni for the one of --cni-conf-dir, or auto: builtin on a node of its own, else cni")
	fs.StringVar(&e.CNIConfDir, "cni-conf-dir", e.CNIConfDir,
		"CNI configurations, of which the first by name is used; --network auto takes a directory other than the default, "+
			"and while it has none the built-in network")
	fs.StringSliceVar(&e.CNIBinDirs, "cni-bin-dir", e.CNIBinDirs, "directories of CNI plugins")
	fs.StringSliceVar(&e.CDISpecDirs, "cdi-spec-dirs", e.CDISpecDirs,
		"directories of CDI device specifications, of which the later wins (empty: none)")
	fs.StringVar(&e.BlockIOFile, "blockio-config", e.BlockIOFile,
		"YAML file with the classes of block I/O that pods may name (empty: none)")
	fs.BoolVar(&e.NRI, "nri", e.NRI, "call plugins of the Node Resource Interface")
	fs.StringVar(&e.NRISocket, "nri-socket", e.NRISocket,
		"socket that NRI plugins connect to; a relative path is in the run directory (default "+DefaultNRISocket+" for the "+
			"run directory "+DefaultRunDir+", "+NRISocketName+" for another)")
	fs.StringVar(&e.NRIPluginDir, "nri-plugin-dir", e.NRIPluginDir, "NRI plugins that are started with the runtime")
	fs.StringVar(&e.NRIConfigDir, "nri-config-dir", e.NRIConfigDir, "configuration of those plugins")
	fs.DurationVar(&e.NRIRegistration, "nri-registration-timeout", e.NRIRegistration,
		"let go of an NRI plugin that has not registered by then")
	fs.DurationVar(&e.NRIRequest, "nri-request-timeout", e.NRIRequest,
		"let go of an NRI plugin that has not answered a call by then")
	fs.StringVar(&e.RegistryConfigDir, "registry-config-dir", e.RegistryConfigDir,
		"registry settings, REGISTRY/hosts.toml each")
	fs.StringSliceVar(&e.PinnedImages, "pinned-images", e.PinnedImages,
		"names of images that garbage collection leaves, in which * stands for anything")
	fs.DurationVar(&e.PullStallTimeout, "pull-stall-timeout", e.PullStallTimeout,
		"give a pull up when it makes no progress for this long")
	fs.IntVar(&e.MaxParallelPulls, "max-parallel-pulls", e.MaxParallelPulls, "layers that are downloaded at the same time")
	fs.IntVar(&e.MaxRegistryPulls, "max-parallel-pulls-per-registry", e.MaxRegistryPulls,
		"and from one registry (0: as many as in all)")
	fs.Var(size{&e.LogMaxSize.Quantity}, "log-max-size", "size at which a container's log is rotated (0: never)")
	fs.StringVar(&e.HandlersFile, "runtime-handlers", e.HandlersFile,
		"YAML file with the runtime handlers that pods may name (empty: crun, runc and wasm where they are found)")
	fs.StringVar(&e.ContainerStart, "container-start", e.ContainerStart,
		"who starts containers: libcontainer, or auto, which starts ordinary ones without it")
	fs.IntVar(&e.LogMaxFiles, "log-max-files", e.LogMaxFiles, "log files kept for a container")
	fs.DurationVar(&e.LogInterval, "log-monitor-interval", e.LogInterval,
		"longest time between two looks at the size of a log that is written, where the runtime is another one")
}

// AddFlags adds the flags of every setting to fs, but for the run directory's.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	c.Place.AddFlags(fs)
	c.Embedded.AddFlags(fs)
	c.Resources.AddFlags(fs)
	fs.StringVar(&c.Endpoint, "runtime", c.Endpoint,
		"socket of another CRI runtime, used instead of the embedded one, such as unix:///run/containerd/containerd.sock")
	c.Manifests.AddFlags(fs)
	fs.StringVar(&c.NodeName, "node-name", c.NodeName, "name of this node (default the host name)")
	fs.StringToStringVar(&c.NodeLabels, "node-labels", c.NodeLabels,
		"labels of this node beside those of every node (kubernetes.io/hostname, os and arch), as a=b,c=d: what "+
			"nodeSelector and node affinity choose by")
	fs.StringVar(&c.CRISocket, "cri-socket", c.CRISocket,
		"serve the CRI on this socket too, which a relative path puts into the run directory (empty: off)")
	fs.DurationVar(&c.BackoffInitial, "backoff-initial", c.BackoffInitial,
		"first delay before a failed container is started again")
	fs.DurationVar(&c.BackoffMax, "backoff-max", c.BackoffMax, "longest delay before a failed container is started again")
	c.Managers.AddFlags(fs)
	c.Server.AddFlags(fs)
	c.Cluster.AddFlags(fs)
	c.Pods.AddFlags(fs)
	c.CSI.AddFlags(fs)
	c.Shutdown.AddFlags(fs)
	c.ImageGC.AddFlags(fs)
	addDeadFlags(&c.Dead, fs)
	fs.StringVar(&c.CredentialConfig, "image-credential-provider-config", c.CredentialConfig,
		"CredentialProviderConfig of kubelet's exec plugins that know the registries' credentials, a file or a directory "+
			"(empty: none)")
	fs.StringVar(&c.CredentialBinDir, "image-credential-provider-bin-dir", c.CredentialBinDir,
		"directory of those plugins")
	c.Logging.AddFlags(fs)
}

// AddFlags adds the flags of logging to fs.
func (l *Logging) AddFlags(fs *pflag.FlagSet) {
	fs.TextVar(&l.Level, "log-level", l.Level, "least level that is logged: debug, info, warn or error")
	fs.StringVar(&l.Format, "log-format", l.Format, "text or json")
}

// size is the value of a flag that is a quantity.
type size struct{ to *resource.Quantity }

func (s size) String() string { return s.to.String() }

func (s size) Type() string { return "quantity" }

func (s size) Set(text string) error {
	q, err := quantity.Parse(text)
	if err == nil {
		*s.to = q
	}
	return err
}
