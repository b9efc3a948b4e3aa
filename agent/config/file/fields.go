package file

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Field is one field of KubeletConfiguration and what it does here.
type Field struct {
	Path string // as in the file, "authentication.webhook.enabled"
	Flag string // the setting that it is; "": none

	// Values turns the field's value into the setting's; nil: it is the same.
	Values func(value any) ([]string, error)

	// Says is what happens instead of what the field asks for, "" for fields that are settings.
	Says string
	// Same are the values that ask for what happens here anyway, so that there is nothing to say.
	Same []string
}

// What many fields have in common.
const (
	byEvent = "nothing is polled: changes are heard of when they happen"
	byUnit  = "is the service manager's, see 'berth unit'"
	notYet  = "is not done yet"
	legacy  = "does nothing in kubelet either"
)

func setting(path, flag string) Field { return Field{Path: path, Flag: flag} }

func converted(path, flag string, values func(any) ([]string, error)) Field {
	return Field{Path: path, Flag: flag, Values: values}
}

func ignored(path, says string, same ...string) Field {
	return Field{Path: path, Says: says, Same: same}
}

// Fields are all fields of KubeletConfiguration, in its order.
func Fields() []Field {
	return slices.Concat(serverFields(), podFields(), nodeFields(), resourceFields(), otherFields())
}

func serverFields() []Field {
	return []Field{
		setting("enableServer", "enable-server"),
		setting("address", "address"),
		setting("port", "port"),
		setting("readOnlyPort", "read-only-port"),
		setting("healthzPort", "healthz-port"),
		setting("healthzBindAddress", "healthz-bind-address"),
		setting("tlsCertFile", "tls-cert-file"),
		setting("tlsPrivateKeyFile", "tls-private-key-file"),
		setting("tlsCipherSuites", "tls-cipher-suites"),
		setting("tlsCurvePreferences", "tls-curve-preferences"),
		setting("tlsMinVersion", "tls-min-version"),
		setting("rotateCertificates", "rotate-certificates"),
		setting("serverTLSBootstrap", "rotate-server-certificates"),
		setting("authentication.x509.clientCAFile", "client-ca-file"),
		setting("authentication.webhook.enabled", "authentication-token-webhook"),
		setting("authentication.webhook.cacheTTL", "authentication-token-webhook-cache-ttl"),
		setting("authentication.anonymous.enabled", "anonymous-auth"),
		setting("authorization.mode", "authorization-mode"),
		setting("authorization.webhook.cacheAuthorizedTTL", "authorization-webhook-cache-authorized-ttl"),
		setting("authorization.webhook.cacheUnauthorizedTTL", "authorization-webhook-cache-unauthorized-ttl"),
		setting("enableDebuggingHandlers", "enable-debugging-handlers"),
		ignored("enableContentionProfiling", notYet),
		setting("enableProfilingHandler", "profiling"),
		ignored("enableDebugFlagsHandler", "the log level is changed by the configuration and SIGHUP", "false"),
		setting("enableSystemLogHandler", "enable-system-log-handler"),
		ignored("enableSystemLogQuery", "/logs/ shows files and asks no journal", "false"),
		ignored("streamingConnectionIdleTimeout", "streams that are idle are closed after 4h", "4h0m0s"),
	}
}

func podFields() []Field {
	return []Field{
		setting("staticPodPath", "manifest-dir"),
		setting("podLogsDir", "log-dir"),
		ignored("syncFrequency", byEvent),
		ignored("fileCheckFrequency", byEvent),
		ignored("httpCheckFrequency", "is not needed for files, which are heard of"),
		setting("staticPodURL", "manifest-url"),
		converted(headersField, headersFlag, headers),
		ignored("registryPullQPS", "pulls are limited in number, see --max-parallel-pulls, not by time"),
		ignored("registryBurst", "pulls are limited in number, see --max-parallel-pulls, not by time"),
		setting("imagePullCredentialsVerificationPolicy", "image-pull-credentials-verification-policy"),
		setting("preloadedImagesVerificationAllowlist", "preloaded-images-verification-allowlist"),
		ignored("serializeImagePulls", "images are pulled side by side, see --max-parallel-pulls", "false"),
		ignored("maxParallelImagePulls", "what is limited are the layers that are downloaded, see --max-parallel-pulls"),
		setting("clusterDomain", "cluster-domain"),
		setting("clusterDNS", "cluster-dns"),
		setting("resolvConf", "resolv-conf"),
		setting("allowedUnsafeSysctls", "allowed-unsafe-sysctls"),
		ignored("defaultPodSysctls", notYet),
		setting("seccompDefault", "seccomp-default"),
		setting("containerLogMaxSize", "log-max-size"),
		setting("containerLogMaxFiles", "log-max-files"),
		ignored("containerLogMaxWorkers",
			"each pod's keeper rotates its own logs; those of another runtime are rotated one after the other"),
		setting("containerLogMonitorInterval", "log-monitor-interval"),
		setting("crashLoopBackOff.maxContainerRestartPeriod", "backoff-max"),
		ignored("configMapAndSecretChangeDetectionStrategy", "what pods refer to is watched", "Watch"),
		setting("localStorageCapacityIsolation", "local-storage-capacity-isolation"),
		ignored("userNamespaces.idsPerPod", "a pod has 65536 ids", "65536"),
		ignored("volumePluginDir", "FlexVolume plugins are not called, CSI has replaced them"),
		ignored("runOnce", legacy, "false"),
	}
}

func nodeFields() []Field {
	return []Field{
		setting("eventRecordQPS", "event-qps"),
		setting("eventBurst", "event-burst"),
		ignored("oomScoreAdj", byUnit, "-999"),
		ignored("nodeStatusUpdateFrequency", byEvent),
		setting("nodeStatusReportFrequency", "node-status-report-frequency"),
		converted("nodeLeaseDurationSeconds", "node-lease-duration", seconds),
		setting("nodeStatusMaxImages", "node-status-max-images"),
		setting("registerNode", "register-node"),
		converted("registerWithTaints", "register-with-taints", taints),
		setting("providerID", "provider-id"),
		setting("contentType", "kube-api-content-type"),
		setting("kubeAPIQPS", "kube-api-qps"),
		setting("kubeAPIBurst", "kube-api-burst"),
		ignored("enableControllerAttachDetach", "volumes are attached by the cluster's controllers, or the CSI driver", "true"),
		setting("imageMinimumGCAge", "minimum-image-ttl-duration"),
		setting("imageMaximumGCAge", "maximum-image-gc-age"),
		setting("imageGCHighThresholdPercent", "image-gc-high-threshold"),
		setting("imageGCLowThresholdPercent", "image-gc-low-threshold"),
		ignored("volumeStatsAggPeriod", "volumes are measured when somebody asks"),
		ignored("kubeletCgroups", byUnit),
		ignored("systemCgroups", byUnit),
		ignored("runtimeRequestTimeout", "each request to the runtime has a limit of its own kind"),
		ignored("hairpinMode", "the network plugin decides; the built-in one lets pods reach themselves", "hairpin-veth",
			"promiscuous-bridge"),
		setting("podCIDR", "pod-cidr"),
		ignored("maxOpenFiles", byUnit, "1000000"),
		ignored("protectKernelDefaults", "the kernel's settings are not checked; 'berth check' says what is amiss", "false"),
		ignored("makeIPTablesUtilChains", legacy),
		ignored("iptablesMasqueradeBit", legacy),
		ignored("iptablesDropBit", legacy),
		ignored("featureGates", "there are no gates: what is there is on"),
		ignored("failSwapOn", "swap is no reason to refuse, and pods use none unless told to", "false"),
		ignored("failCgroupV1", "cgroup v1 is no reason to refuse", "false"),
		ignored("showHiddenMetricsForVersion", "no metric is hidden"),
		ignored("kernelMemcgNotification", "the kernel's notifications are always heard", "true"),
	}
}

func resourceFields() []Field {
	return []Field{
		setting("cgroupRoot", "cgroup-root"),
		ignored("cgroupsPerQOS", "the classes have groups always", "true"),
		setting("cgroupDriver", "cgroup-driver"),
		setting("cpuManagerPolicy", "cpu-manager-policy"),
		setting("cpuManagerPolicyOptions", "cpu-manager-policy-options"),
		ignored("cpuManagerReconcilePeriod", "groups are written when something changes, and looked at with everything else"),
		setting("memoryManagerPolicy", "memory-manager-policy"),
		setting("topologyManagerPolicy", "topology-manager-policy"),
		setting("topologyManagerScope", "topology-manager-scope"),
		setting("topologyManagerPolicyOptions", "topology-manager-policy-options"),
		setting("reservedSystemCPUs", "reserved-cpus"),
		converted("reservedMemory", "reserved-memory", reservedMemory),
		converted("singleProcessOOMKill", "oom-group", oomGroup),
		setting("qosReserved", "qos-reserved"),
		setting("maxPods", "max-pods"),
		setting("podsPerCore", "pods-per-core"),
		converted("podPidsLimit", "pod-max-pids", noLimit),
		setting("cpuCFSQuota", "cpu-cfs-quota"),
		setting("cpuCFSQuotaPeriod", "cpu-cfs-quota-period"),
		converted("evictionHard", "eviction-hard", thresholds),
		converted("evictionSoft", "eviction-soft", thresholds),
		setting("evictionSoftGracePeriod", "eviction-soft-grace-period"),
		setting("evictionPressureTransitionPeriod", "eviction-pressure-transition-period"),
		setting("evictionMaxPodGracePeriod", "eviction-max-pod-grace-period"),
		setting("evictionMinimumReclaim", "eviction-minimum-reclaim"),
		setting("mergeDefaultEvictionSettings", "merge-default-eviction-settings"),
		setting("memorySwap.swapBehavior", "swap-behavior"),
		setting("memoryThrottlingFactor", "memory-throttling-factor"),
		ignored("memoryReservationPolicy", "--memory-qos protects what pods request", "None"),
		setting("systemReserved", "system-reserved"),
		setting("kubeReserved", "kube-reserved"),
		setting("systemReservedCgroup", "system-reserved-cgroup"),
		setting("kubeReservedCgroup", "kube-reserved-cgroup"),
		setting("enforceNodeAllocatable", "enforce-node-allocatable"),
	}
}

func otherFields() []Field {
	return []Field{
		setting("containerRuntimeEndpoint", "runtime"),
		ignored("imageServiceEndpoint", "images are the runtime's, see containerRuntimeEndpoint"),
		setting("shutdownGracePeriod", "shutdown-grace-period"),
		setting("shutdownGracePeriodCriticalPods", "shutdown-grace-period-critical-pods"),
		converted("shutdownGracePeriodByPodPriority", "shutdown-grace-period-by-pod-priority", byPriority),
		setting("logging.format", "log-format"),
		converted("logging.verbosity", "log-level", verbosity),
		ignored("logging.flushFrequency", "the log is not buffered"),
		ignored("logging.vmodule", "the log has one level"),
		ignored("logging.options.text.splitStream", "the log is written to the standard error"),
		ignored("logging.options.text.infoBufferSize", "the log is not buffered"),
		ignored("logging.options.json.splitStream", "the log is written to the standard error"),
		ignored("logging.options.json.infoBufferSize", "the log is not buffered"),
		ignored("tracing.endpoint", "traces are shown by 'berth describe --timing'"),
		ignored("tracing.samplingRatePerMillion", "traces are shown by 'berth describe --timing'"),
	}
}

// decode reads a value again as a type of ours.
func decode(value, into any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

func headers(value any) ([]string, error) {
	var m map[string][]string
	if err := decode(value, &m); err != nil {
		return nil, err
	}
	var out []string
	for _, name := range sorted(m) {
		for _, v := range m[name] {
			out = append(out, name+":"+v)
		}
	}
	return out, nil
}

// reservedMemory writes what kubelet's flag takes: NODE:KIND=QUANTITY,...
func reservedMemory(value any) ([]string, error) {
	var list []struct {
		NumaNode int               `json:"numaNode"`
		Limits   map[string]string `json:"limits"`
	}
	if err := decode(value, &list); err != nil {
		return nil, err
	}
	var out []string
	for _, n := range list {
		out = append(out, strconv.Itoa(n.NumaNode)+":"+pairs(n.Limits, "="))
	}
	return out, nil
}

// noLimit turns -1, which is kubelet's for no limit, into 0.
func noLimit(value any) ([]string, error) {
	var n int64
	if err := decode(value, &n); err != nil {
		return nil, err
	}
	return []string{strconv.FormatInt(max(n, 0), 10)}, nil
}

// oomGroup is what dies with a process that is killed for want of memory.
func oomGroup(value any) ([]string, error) {
	var single bool
	if err := decode(value, &single); err != nil {
		return nil, err
	}
	if single {
		return []string{"none"}, nil
	}
	return []string{"container"}, nil
}

func seconds(value any) ([]string, error) {
	var n int64
	if err := decode(value, &n); err != nil {
		return nil, err
	}
	return []string{strconv.FormatInt(n, 10) + "s"}, nil
}

func taints(value any) ([]string, error) {
	var list []struct{ Key, Value, Effect string }
	if err := decode(value, &list); err != nil {
		return nil, err
	}
	var out []string
	for _, t := range list {
		out = append(out, t.Key+"="+t.Value+":"+t.Effect)
	}
	return out, nil
}

func thresholds(value any) ([]string, error) {
	var m map[string]string
	if err := decode(value, &m); err != nil {
		return nil, err
	}
	return []string{pairs(m, "<")}, nil
}

// byPriority writes PRIORITY=SECONDSs.
func byPriority(value any) ([]string, error) {
	var list []struct {
		Priority int32 `json:"priority"`
		Seconds  int64 `json:"shutdownGracePeriodSeconds"`
	}
	if err := decode(value, &list); err != nil {
		return nil, err
	}
	var out []string
	for _, p := range list {
		out = append(out, fmt.Sprintf("%d=%ds", p.Priority, p.Seconds))
	}
	return out, nil
}

// debugVerbosity is from where on kubelet tells what it decides and why.
const debugVerbosity = 4

func verbosity(value any) ([]string, error) {
	var v int
	if err := decode(value, &v); err != nil {
		return nil, err
	}
	if v >= debugVerbosity {
		return []string{"debug"}, nil
	}
	return []string{"info"}, nil
}

func pairs(m map[string]string, between string) string {
	var out []string
	for _, k := range sorted(m) {
		out = append(out, k+between+m[k])
	}
	return strings.Join(out, ",")
}
