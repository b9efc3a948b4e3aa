// Package config is what an agent can be told: the settings, their defaults, their flags and what must hold between
// them.
package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-node/berth/agent/pulled"
	"github.com/berth-node/berth/eviction/collect"
)

// Place is where an agent lives. Agents on one machine differ in every field of it and do not know of each other.
type Place struct {
	RootDir    string
	RunDir     string
	LogDir     string
	CgroupRoot string
	// CgroupDriver is cgroupfs or systemd; "" is what the runtime has, and the embedded one has cgroupfs then.
	CgroupDriver string
	BridgeName   string
	PodCIDR      netip.Prefix
	Helper       string
	// KubeletDir has the sockets of device plugins, of other plugins and of pod-resources; "" is the root directory.
	KubeletDir string
}

// Embedded is how the embedded runtime works.
type Embedded struct {
	ImageDir          string
	Network           string // [NetworkAuto], [NetworkBuiltin] or [NetworkCNI]
	CNIConfDir        string
	CNIBinDirs        []string
	CDISpecDirs       []string
	BlockIOFile       string
	NRI               bool
	NRISocket         string
	NRIPluginDir      string
	NRIConfigDir      string
	NRIRegistration   time.Duration // how long a plugin may take to register
	NRIRequest        time.Duration // and to answer a call
	RegistryConfigDir string
	PinnedImages      []string
	PullStallTimeout  time.Duration
	MaxParallelPulls  int
	MaxRegistryPulls  int
	LogMaxSize        resource.QuantityValue
	LogMaxFiles       int
	LogInterval       time.Duration // how often the logs of another runtime are looked at
	Starts
}

// Starts are how containers are started.
type Starts struct {
	HandlersFile   string // the runtime handlers that pods may name
	ContainerStart string // of the handler that is built in: auto or libcontainer
}

// Config is every setting of an agent.
type Config struct {
	Place
	Embedded
	Resources

	// Endpoint is the runtime that is used instead of the embedded one.
	Endpoint string

	Manifests

	NodeName   string
	NodeLabels map[string]string

	CRISocket string

	CredentialConfig string // image credential providers; "" = none
	CredentialBinDir string

	Backoff

	Managers
	Server
	Cluster
	Pods
	CSI CSI
	Shutdown
	ImageGC ImageGC
	Dead    collect.Policy // which dead containers are kept for their logs

	Logging
}

// Backoff is how long a failed container waits for its next start.
type Backoff struct {
	BackoffInitial time.Duration
	BackoffMax     time.Duration
}

// Logging is how the program itself logs.
type Logging struct {
	Level  slog.Level
	Format string
}

// DefaultRunDir is the run directory of an agent that was told nothing, and the one the CLI looks into.
const DefaultRunDir = "/run/berth"

// DefaultKubeletDir is kubelet's root directory, where plugins look for its sockets.
const DefaultKubeletDir = "/var/lib/kubelet"

// CRISocketName is the name of the socket of the CRI in the run directory.
const CRISocketName = "cri.sock"

// NRISocketName is the name of the socket of NRI plugins in the run directory.
const NRISocketName = "nri.sock"

// DefaultNRISocket is where NRI plugins look for the runtime of a machine.
const DefaultNRISocket = "/var/run/nri/nri.sock"

// NRISocketPath is the socket of a runtime: that of the machine for the machine's own one, and for others one in the
// run directory, since only one runtime can serve a socket.
func (c *Config) NRISocketPath() string {
	switch {
	case c.NRISocket != "":
		return InRunDir(c.RunDir, c.NRISocket)
	case c.RunDir == DefaultRunDir:
		return DefaultNRISocket
	default:
		return path.Join(c.RunDir, NRISocketName)
	}
}

// RunDirEnv names the environment variable that the CLI finds its agent by.
const RunDirEnv = "BERTH_RUN_DIR"

// Default returns the settings of an agent that was told nothing.
func Default() Config {
	return Config{
		Place: Place{
			RootDir:    "/var/lib/berth",
			RunDir:     DefaultRunDir,
			LogDir:     "/var/log/pods",
			CgroupRoot: "/",
			BridgeName: "berth0",
			// Away from the ranges that podman, containerd, CRI-O, flannel, k3s, kind and kubeadm's services take by
			// default.
			PodCIDR: netip.MustParsePrefix("10.77.0.0/16"),
		},
		Embedded: Embedded{
			Network:          NetworkAuto,
			CNIConfDir:       DefaultCNIConfDir,
			CNIBinDirs:       []string{"/opt/cni/bin", "/usr/lib/cni"},
			NRI:              true,
			NRIPluginDir:     "/opt/nri/plugins",
			NRIConfigDir:     "/etc/nri/conf.d",
			NRIRegistration:  5 * time.Second,
			NRIRequest:       2 * time.Second,
			CDISpecDirs:      []string{"/etc/cdi", "/var/run/cdi"},
			PullStallTimeout: time.Minute,
			MaxParallelPulls: 6,
			LogMaxSize:       resource.QuantityValue{Quantity: resource.MustParse("10Mi")},
			LogMaxFiles:      5,
			Starts:           Starts{ContainerStart: "auto"},
			LogInterval:      10 * time.Second,
		},
		Resources: defaultResources(),
		Manifests: Manifests{ManifestDir: "/etc/berth/manifests"},
		CRISocket: CRISocketName,
		Backoff:   Backoff{BackoffInitial: 10 * time.Second, BackoffMax: 5 * time.Minute},
		Managers:  defaultManagers(),
		ImageGC:   defaultImageGC(),
		Dead:      collect.Default(),
		Server:    defaultServer(),
		Cluster:   defaultCluster(),
		Pods:      Pods{ResolvConf: "/etc/resolv.conf", ClusterDomain: "cluster.local", Verify: pulled.DefaultKind},
		CSI:       CSI{Grace: 12 * time.Hour, Local: LocalCSI{On: true, Overcommit: 1, ThinPool: "berth"}},
		Logging:   Logging{Level: slog.LevelInfo, Format: "text"},
	}
}

// Complete makes paths absolute, fills in what depends on the machine, and says what is wrong with the place.
func (p *Place) Complete() error {
	var errs []error
	for _, d := range []struct {
		flag  string
		value *string
	}{{"root-dir", &p.RootDir}, {"run-dir", &p.RunDir}, {"log-dir", &p.LogDir}} {
		errs = append(errs, absolute(d.flag, d.value))
	}
	if p.RootDir == p.RunDir || p.RootDir == p.LogDir || p.RunDir == p.LogDir {
		errs = append(errs, errors.New("--root-dir, --run-dir and --log-dir must differ"))
	}
	if !path.IsAbs(p.CgroupRoot) || path.Clean(p.CgroupRoot) != p.CgroupRoot {
		errs = append(errs, fmt.Errorf("--cgroup-root %q: must be a clean path that begins with /", p.CgroupRoot))
	}
	if p.CgroupDriver != "" && p.CgroupDriver != "cgroupfs" && p.CgroupDriver != "systemd" {
		errs = append(errs, fmt.Errorf("--cgroup-driver %q: must be cgroupfs or systemd", p.CgroupDriver))
	}
	// The kernel's IFNAMSIZ is 16 with the final NUL; a name with / or space cannot be addressed in sysfs.
	if n := len(p.BridgeName); n == 0 || n > 15 || strings.ContainsAny(p.BridgeName, "/ \t") {
		errs = append(errs, fmt.Errorf("--bridge-name %q: must have 1 to 15 characters, no / or space", p.BridgeName))
	}
	if !p.PodCIDR.IsValid() || p.PodCIDR.Addr().BitLen()-p.PodCIDR.Bits() < 2 {
		errs = append(errs, fmt.Errorf("--pod-cidr %q: must be a network with at least 4 addresses", p.PodCIDR))
	}
	if p.Helper == "" {
		exe, err := os.Executable()
		if err != nil {
			errs = append(errs, fmt.Errorf("find berth-helper: %w", err))
		}
		p.Helper = helperOf(exe)
	}
	if p.KubeletDir == "" {
		p.KubeletDir = p.RootDir
	}
	errs = append(errs, absolute("helper", &p.Helper), absolute("kubelet-dir", &p.KubeletDir))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	p.PodCIDR = p.PodCIDR.Masked()
	return nil
}

// helperOf is the helper that belongs to a program: beside it, as the build has them, or where an installation has what
// people do not start themselves (file-hierarchy(7)).
func helperOf(exe string) string {
	beside := filepath.Join(filepath.Dir(exe), "berth-helper")
	installed := filepath.Join(filepath.Dir(exe), "..", "libexec", "berth", "berth-helper")
	if _, err := os.Stat(beside); err != nil {
		if _, err := os.Stat(installed); err == nil {
			return installed
		}
	}
	return beside
}

// Complete makes paths absolute and says what is wrong with the settings.
func (e *Embedded) Complete() error {
	errs := []error{e.completeNetwork()}
	for flag, dir := range map[string]*string{
		"image-dir": &e.ImageDir, "cni-conf-dir": &e.CNIConfDir, "registry-config-dir": &e.RegistryConfigDir, "runtime-handlers": &e.HandlersFile,
	} {
		if *dir != "" {
			errs = append(errs, absolute(flag, dir))
		}
	}
	for flag, d := range map[string]time.Duration{"registration": e.NRIRegistration, "request": e.NRIRequest} {
		if d <= 0 {
			errs = append(errs, fmt.Errorf("--nri-%s-timeout %s: must be positive", flag, d))
		}
	}
	if e.PullStallTimeout < 0 {
		errs = append(errs, fmt.Errorf("--pull-stall-timeout %s: must not be negative", e.PullStallTimeout))
	}
	if e.LogMaxSize.Sign() < 0 || e.LogMaxFiles < 1 {
		errs = append(errs, errors.New("--log-max-size must not be negative, and --log-max-files at least 1"))
	}
	if e.ContainerStart != "auto" && e.ContainerStart != "libcontainer" {
		errs = append(errs, fmt.Errorf("--container-start %q: must be auto or libcontainer", e.ContainerStart))
	}
	if e.LogInterval <= 0 {
		errs = append(errs, fmt.Errorf("--log-monitor-interval %s: must be positive", e.LogInterval))
	}
	if e.MaxParallelPulls < 1 {
		errs = append(errs, errors.New("--max-parallel-pulls must be at least 1"))
	}
	if e.MaxRegistryPulls < 0 || e.MaxRegistryPulls > e.MaxParallelPulls {
		errs = append(errs, errors.New("--max-parallel-pulls-per-registry must not be negative, and not more than "+
			"--max-parallel-pulls"))
	}
	return errors.Join(errs...)
}

// Complete is [Place.Complete] for every setting.
func (c *Config) Complete() error {
	errs := []error{
		c.Place.Complete(), c.Embedded.Complete(), c.Resources.Complete(), c.ImageGC.Complete(),
		c.Dead.Validate(), c.Manifests.Complete(), c.apart(c.Place),
	}
	if c.NodeName == "" {
		host, err := os.Hostname()
		if err != nil {
			errs = append(errs, fmt.Errorf("find the host name: %w", err))
		}
		c.NodeName = strings.ToLower(host)
	}
	for _, m := range validation.IsDNS1123Subdomain(c.NodeName) {
		errs = append(errs, fmt.Errorf("--node-name %q: %s", c.NodeName, m))
	}
	for flag, d := range map[string]time.Duration{"backoff-initial": c.BackoffInitial, "backoff-max": c.BackoffMax} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("--%s %s: must not be negative", flag, d))
		}
	}
	if c.BackoffMax < c.BackoffInitial {
		errs = append(errs, fmt.Errorf("--backoff-max %s is less than --backoff-initial %s", c.BackoffMax, c.BackoffInitial))
	}
	if c.Endpoint != "" && c.CRISocket != "" && strings.TrimPrefix(c.Endpoint, "unix://") == InRunDir(c.RunDir, c.CRISocket) {
		c.Endpoint = "" // it names the socket of the runtime that is built in
	}
	switch {
	case c.Endpoint != "" && c.CRISocket == CRISocketName:
		c.CRISocket = ""
	case c.Endpoint != "" && c.CRISocket != "":
		errs = append(errs, errors.New("--cri-socket serves the embedded runtime, which --runtime does without"))
	default:
		c.CRISocket = InRunDir(c.RunDir, c.CRISocket)
	}
	if c.Endpoint != "" && c.ImageDir != "" {
		errs = append(errs, errors.New("--image-dir is read by the embedded runtime, which --runtime does without: a CRI "+
			"runtime has no import of its own"))
	}
	_, pins := c.Pinning()
	_, labels := c.Labels()
	_, periods := c.Periods()
	errs = append(errs, pins, labels, periods, c.completeCluster(), c.Server.Complete(c.RootDir), c.Pods.Complete(), c.CSI.Complete(),
		c.completeCredentials(),
		c.Logging.Validate())
	return errors.Join(slices.DeleteFunc(errs, func(e error) bool { return e == nil })...)
}

// completeCluster has a node of a cluster serve its API where the API server asks for it.
func (c *Config) completeCluster() error {
	err := c.Cluster.complete()
	if !c.Joined() {
		return err
	}
	if c.Port == 0 {
		c.Port = DefaultPort
	}
	return errors.Join(err, checkLabels(c.NodeLabels))
}

func (c *Config) completeCredentials() error {
	if (c.CredentialConfig == "") != (c.CredentialBinDir == "") {
		return errors.New("--image-credential-provider-config and --image-credential-provider-bin-dir need each other")
	}
	if c.CredentialConfig == "" {
		return nil
	}
	return errors.Join(absolute("image-credential-provider-config", &c.CredentialConfig),
		absolute("image-credential-provider-bin-dir", &c.CredentialBinDir))
}

// InRunDir is the path of a socket: one that is relative is in the run directory.
func InRunDir(runDir, socket string) string {
	if socket == "" || path.IsAbs(socket) || strings.Contains(socket, "://") {
		return socket
	}
	return path.Join(runDir, socket)
}

// Validate says what is wrong with it.
func (l *Logging) Validate() error {
	if l.Format != "text" && l.Format != "json" {
		return fmt.Errorf("--log-format %q: must be text or json", l.Format)
	}
	return nil
}

// Logger makes the program's logger.
func (l *Logging) Logger(w *os.File) *slog.Logger { return l.LoggerAt(w, l.Level) }

// LoggerAt is [Logging.Logger] with a level that can change.
func (l *Logging) LoggerAt(w *os.File, level slog.Leveler) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if l.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

func absolute(flag string, p *string) error {
	if *p == "" {
		return fmt.Errorf("--%s must not be empty", flag)
	}
	abs, err := filepath.Abs(*p)
	if err != nil {
		return fmt.Errorf("--%s: %w", flag, err)
	}
	*p = abs
	return nil
}
