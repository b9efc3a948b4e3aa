package config

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Cluster is how the node belongs to a cluster. Names and values are kubelet's where it has them.
type Cluster struct {
	Kubeconfig          string // of the API server whose node this is; "": none
	BootstrapKubeconfig string // with which the one above is had, while there is none
	RotateCertificates  bool
	ServerTLSBootstrap  bool

	Register   bool
	Taints     []string // key=value:effect
	NodeIPs    []string // at most one of each family; none: those of the default routes
	ProviderID string

	StatusReport  time.Duration // how often the Node is written though nothing has changed
	LeaseDuration time.Duration // after which the cluster takes the node for gone; renewed after a quarter
	MaxImages     int           // in the Node; -1: all

	ContentType string
	QPS, Burst  int
	EventQPS    int
	EventBurst  int

	// Offline says what becomes of the pods of the API server when the machine starts without it.
	Offline string
}

// The values of [Cluster.Offline].
const (
	OfflineForget = "forget"    // they start when the API server has said that they are still wanted
	OfflineKeep   = "keep-pods" // they are kept on the node, encrypted, and start without it
)

const (
	contentProtobuf = "application/vnd.kubernetes.protobuf"
	contentJSON     = "application/json"
)

func defaultCluster() Cluster {
	return Cluster{
		RotateCertificates: true, Register: true, StatusReport: 5 * time.Minute, LeaseDuration: 40 * time.Second,
		MaxImages: 50, ContentType: contentProtobuf, QPS: 50, Burst: 100, EventQPS: 50, EventBurst: 100,
		Offline: OfflineForget,
	}
}

// AddFlags adds the flags to fs.
func (c *Cluster) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig,
		"API server whose node this is, which says who has a token and who may do what, too; read again when it is replaced "+
			"(empty: a node of its own, where --token-auth-file and --api-allow say that)")
	fs.StringVar(&c.BootstrapKubeconfig, "bootstrap-kubeconfig", c.BootstrapKubeconfig,
		"API server and token that a client certificate is asked for with, where --kubeconfig is not there yet")
	fs.BoolVar(&c.RotateCertificates, "rotate-certificates", c.RotateCertificates,
		"ask for a new client certificate before the one that the API server has signed ends")
	fs.BoolVar(&c.ServerTLSBootstrap, "rotate-server-certificates", c.ServerTLSBootstrap,
		"have the API server sign the serving certificate, instead of the node's own authority")
	fs.BoolVar(&c.Register, "register-node", c.Register, "register the node with the API server")
	fs.StringSliceVar(&c.Taints, "register-with-taints", c.Taints,
		"taints that the node is registered with, as key=value:effect")
	fs.StringSliceVar(&c.NodeIPs, "node-ip", c.NodeIPs,
		"address of the node, or one of each family, the main one first (empty: those with which it reaches the world)")
	fs.StringVar(&c.ProviderID, "provider-id", c.ProviderID, "what the machine is to who provides it, for the Node")
	fs.DurationVar(&c.StatusReport, "node-status-report-frequency", c.StatusReport,
		"how often the Node is written though nothing has changed")
	fs.DurationVar(&c.LeaseDuration, "node-lease-duration", c.LeaseDuration,
		"how long the node counts as alive after its lease was renewed, which happens four times as often")
	fs.IntVar(&c.MaxImages, "node-status-max-images", c.MaxImages, "images that the Node lists, the largest first (-1: all)")
	fs.StringVar(&c.ContentType, "kube-api-content-type", c.ContentType, "how the API server is spoken to: "+
		contentProtobuf+" or "+contentJSON)
	fs.IntVar(&c.QPS, "kube-api-qps", c.QPS, "requests a second to the API server in the long run (0: 50)")
	fs.IntVar(&c.Burst, "kube-api-burst", c.Burst, "and at once")
	fs.IntVar(&c.EventQPS, "event-qps", c.EventQPS, "events a second that the API server is told of in the long run (0: all)")
	fs.IntVar(&c.EventBurst, "event-burst", c.EventBurst, "and at once")
	fs.StringVar(&c.Offline, "offline", c.Offline,
		"what becomes of the API server's pods when the machine starts and it does not answer: forget, they wait for it, or "+
			"keep-pods, they are kept on the node, encrypted, with what they refer to, and start")
}

// Joined says whether the node is one of a cluster.
func (c *Cluster) Joined() bool { return c.Kubeconfig != "" }

// Station is what the node is to its pods.
func (c *Cluster) Station() Station {
	if c.Joined() {
		return Member
	}
	return Alone
}

// complete makes paths absolute and says what is wrong with the settings.
func (c *Cluster) complete() error {
	var errs []error
	for flag, p := range map[string]*string{
		"kubeconfig": &c.Kubeconfig, "bootstrap-kubeconfig": &c.BootstrapKubeconfig,
	} {
		if *p != "" {
			errs = append(errs, absolute(flag, p))
		}
	}
	if c.BootstrapKubeconfig != "" && c.Kubeconfig == "" {
		errs = append(errs, errors.New("--bootstrap-kubeconfig needs --kubeconfig, the file that is made with it"))
	}
	_, err := c.ParsedTaints()
	errs = append(errs, err, c.checkAddresses(), c.checkNumbers())
	if c.ContentType != contentProtobuf && c.ContentType != contentJSON {
		errs = append(errs, fmt.Errorf("--kube-api-content-type %q: must be %s or %s", c.ContentType, contentProtobuf, contentJSON))
	}
	if c.Offline != OfflineForget && c.Offline != OfflineKeep {
		errs = append(errs, fmt.Errorf("--offline %q: must be %s or %s", c.Offline, OfflineForget, OfflineKeep))
	}
	return errors.Join(errs...)
}

func (c *Cluster) checkNumbers() error {
	var errs []error
	if c.StatusReport <= 0 {
		errs = append(errs, fmt.Errorf("--node-status-report-frequency %s: must be positive", c.StatusReport))
	}
	// The API has whole seconds, and the lease is renewed after a quarter of them.
	if c.LeaseDuration < 4*time.Second || c.LeaseDuration%time.Second != 0 {
		errs = append(errs, fmt.Errorf("--node-lease-duration %s: must be whole seconds, at least 4", c.LeaseDuration))
	}
	if c.MaxImages < -1 {
		errs = append(errs, fmt.Errorf("--node-status-max-images %d: must be -1 or more", c.MaxImages))
	}
	for flag, n := range map[string]int{
		"kube-api-qps": c.QPS, "kube-api-burst": c.Burst, "event-qps": c.EventQPS, "event-burst": c.EventBurst,
	} {
		if n < 0 {
			errs = append(errs, fmt.Errorf("--%s %d: must not be negative", flag, n))
		}
	}
	return errors.Join(errs...)
}

func (c *Cluster) checkAddresses() error {
	families := map[bool]string{}
	for _, a := range c.NodeIPs {
		ip := net.ParseIP(a)
		if ip == nil {
			return fmt.Errorf("--node-ip %q: must be an IP address", a)
		}
		four := ip.To4() != nil
		if other, taken := families[four]; taken {
			return fmt.Errorf("--node-ip %s and %s: must be of different families", other, a)
		}
		families[four] = a
	}
	return nil
}

// ParsedTaints are those that the node is registered with.
func (c *Cluster) ParsedTaints() ([]corev1.Taint, error) {
	var out []corev1.Taint
	var errs []error
	for _, text := range c.Taints {
		pair, effect, ok := strings.Cut(text, ":")
		key, value, _ := strings.Cut(pair, "=")
		t := corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)}
		wrong := slices.Concat(validation.IsQualifiedName(key), validation.IsValidLabelValue(value))
		switch t.Effect {
		case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
		default:
			wrong = append(wrong, "the effect must be NoSchedule, PreferNoSchedule or NoExecute")
		}
		if !ok || len(wrong) > 0 {
			errs = append(errs, fmt.Errorf("--register-with-taints %q: must be key=value:effect: %s", text, strings.Join(wrong, "; ")))
			continue
		}
		if slices.ContainsFunc(out, func(o corev1.Taint) bool { return o.MatchTaint(&t) }) {
			errs = append(errs, fmt.Errorf("--register-with-taints %q: key and effect are there twice", text))
			continue
		}
		out = append(out, t)
	}
	return out, errors.Join(errs...)
}

// Labels in the namespaces of Kubernetes that a node may give itself: the admission plugin NodeRestriction refuses
// others, and the Node with them.
var (
	ownLabels = []string{
		corev1.LabelHostname, corev1.LabelOSStable, corev1.LabelArchStable, corev1.LabelInstanceTypeStable,
		corev1.LabelInstanceType, corev1.LabelTopologyRegion, corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaRegion,
		corev1.LabelFailureDomainBetaZone, "beta.kubernetes.io/os", "beta.kubernetes.io/arch",
	}
	ownLabelDomains = []string{"kubelet.kubernetes.io", "node.kubernetes.io"}
	kubeDomains     = []string{"kubernetes.io", "k8s.io"}
)

// checkLabels says which labels of --node-labels the API server would not have of a node.
func checkLabels(labels map[string]string) error {
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		domain, _, ok := strings.Cut(key, "/")
		below := func(d string) bool { return domain == d || strings.HasSuffix(domain, "."+d) }
		if !ok || !slices.ContainsFunc(kubeDomains, below) || slices.Contains(ownLabels, key) ||
			slices.ContainsFunc(ownLabelDomains, below) {
			continue
		}
		errs = append(errs, fmt.Errorf("--node-labels %s: a node of a cluster may not give itself labels below kubernetes.io and "+
			"k8s.io, but those of kubelet.kubernetes.io and node.kubernetes.io, and %s", key, strings.Join(ownLabels, ", ")))
	}
	return errors.Join(errs...)
}
