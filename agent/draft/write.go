package draft

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/util/validation"
)

// text is a manifest in the making. A line that explains begins with # and a space; one that is a setting to be had
// with # alone.
type text struct{ strings.Builder }

// say writes comments at a depth.
func (t *text) say(depth int, lines ...string) {
	for _, l := range lines {
		fmt.Fprintf(t, "%s# %s\n", strings.Repeat("  ", depth), l)
	}
}

// may writes settings that are not taken.
func (t *text) may(depth int, lines ...string) {
	for _, l := range lines {
		fmt.Fprintf(t, "%s#%s\n", strings.Repeat("  ", depth), l)
	}
}

// has writes a line of the manifest.
func (t *text) has(depth int, format string, args ...any) {
	fmt.Fprintf(t, strings.Repeat("  ", depth)+format+"\n", args...)
}

func (p *Pod) write(got parts) []byte {
	t := &text{}
	t.say(0,
		"The pod "+p.Name+". It runs as long as this file is in the node's directory of manifests, /etc/berth/manifests unless",
		"--manifest-dir says otherwise: copying it there starts it, removing it from there ends it, and a change makes it anew.",
		"What begins with # and a space explains; what begins with # alone is a setting, which removing the # sets.",
		"All that a pod may have: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/")
	t.has(0, "apiVersion: v1\nkind: Pod\nmetadata:")
	t.say(1, "The node's name is put behind it (NAME-NODE); commands take it without, too.")
	t.has(1, "name: %s", scalar(p.Name))
	t.say(1, "ConfigMaps, Secrets and claims that the pod names are looked for in its namespace.")
	t.has(1, "namespace: %s", scalar(p.Namespace))
	if len(validation.IsValidLabelValue(p.Name)) == 0 {
		t.say(1, "For tools that choose pods by what they are; any number of them.")
		t.has(1, "labels:\n    app: %s", scalar(p.Name))
	}
	t.say(1, "The pod starts when others of this node run, or are ready.")
	t.may(1, "annotations:", "  berth.node/after: db=Ready")
	t.has(0, "spec:")
	t.say(1, "What happens when the container ends: Always starts it again, OnFailure when it ended with another code than 0, Never does not.",
		"The time between two starts doubles, up to five minutes.")
	t.has(1, "restartPolicy: %s", p.Restart)
	t.say(1, "Seconds between SIGTERM, by which containers are asked to end, and SIGKILL.")
	t.has(1, "terminationGracePeriodSeconds: 30")
	if !slices.ContainsFunc(got.ports, func(o port) bool { return o.host != 0 && o.host != o.container }) {
		t.say(1, "The node's own network in place of an address of the pod's own; ports are the node's then.")
		t.may(1, "hostNetwork: true")
	}
	t.say(1, "Default: names are looked up where the node does. ClusterFirst asks --cluster-dns, None what dnsConfig says.")
	t.has(1, "dnsPolicy: Default")
	t.say(1, "User IDs of the containers are mapped to ones that are nobody's on the node.")
	t.may(1, "hostUsers: false")
	t.say(1, "Containers of a pod share its address and volumes. Those in initContainers run before, one after the other.")
	t.has(1, "containers:")
	t.container(p, got)
	t.volumes(got.mounts)
	return []byte(t.String())
}

func (t *text) container(p *Pod, got parts) {
	name := p.Name
	if len(validation.IsDNS1123Label(name)) > 0 {
		name = "main" // a pod's name may have dots in it, and be longer
	}
	t.say(1, "By this name berth logs -c and berth exec -c know it.")
	t.has(1, "- name: %s", scalar(name))
	t.say(2, "A tag may mean another image tomorrow; NAME@sha256:DIGEST never does.")
	t.has(2, "image: %s", scalar(p.Image))
	t.say(2, "Always asks the registry at each start, Never takes what is here. Default: IfNotPresent, of the tag latest Always.")
	t.may(2, "imagePullPolicy: Always")
	t.words(p)
	t.env(got.env)
	t.ports(got.ports)
	t.resources(p)
	t.probes(got.ports)
	t.say(2, "What the container may not do; images that expect to be root need less of it.")
	t.may(2, "securityContext:", "  runAsNonRoot: true", "  readOnlyRootFilesystem: true", "  allowPrivilegeEscalation: false",
		"  capabilities:", "    drop: [ALL]")
	if len(got.mounts) == 0 {
		return
	}
	t.say(2, "Where the volumes below are seen. subPath: DIR mounts only a part.")
	t.has(2, "volumeMounts:")
	for _, m := range got.mounts {
		t.has(2, "- name: %s\n      mountPath: %s", scalar(m.volume), scalar(m.path))
		if m.readOnly {
			t.say(3, "The container cannot write to it; what is mounted in it stays as it is.")
			t.has(3, "readOnly: true")
		}
	}
}

// words writes what the container runs.
func (t *text) words(p *Pod) {
	field := "args"
	switch {
	case p.Command:
		field = "command"
		t.say(2, "Runs in place of the image's entry point; args follow it. No shell is involved: [sh, -c, '...'] has one.")
	case len(p.Args) > 0:
		t.say(2, "What the image's entry point is given; command takes the place of that, too. No shell is involved.")
	default:
		t.say(2, "In place of the image's entry point, and what it is given. No shell is involved: [sh, -c, '...'] has one.")
		t.may(2, "command: [sh]", "args: [-c, 'echo hello; exec sleep infinity']")
		return
	}
	t.say(2, "$(NAME) becomes the value of a variable of env, and $$(NAME) stays $(NAME).")
	t.has(2, "%s:", field)
	for _, a := range p.Args {
		t.has(2, "- %s", scalar(a))
	}
}

func (t *text) env(env []variable) {
	t.say(2, "Beside those of the image. Values may come from Secrets, ConfigMaps and the pod's own fields (valueFrom), as this one:")
	if len(env) == 0 {
		t.may(2, "env:")
	} else {
		t.has(2, "env:")
	}
	t.may(2, "- name: POD_IP", "  valueFrom:", "    fieldRef:", "      fieldPath: status.podIP")
	for _, e := range env {
		t.has(2, "- name: %s\n      value: %s", scalar(e.name), scalar(e.value))
	}
}

func (t *text) ports(ports []port) {
	if len(ports) == 0 {
		t.say(2, "Each port of the pod's address can be reached whether it is listed or not; with hostPort the node's own leads there.")
		t.may(2, "ports:", "- containerPort: 8080", "  hostPort: 80")
		return
	}
	t.say(2, "Each port of the pod's address can be reached whether it is listed or not. hostPort is one of the node that leads there.")
	t.has(2, "ports:")
	for _, o := range ports {
		t.has(2, "- containerPort: %d", o.container)
		if o.host == 0 {
			t.may(2, "  hostPort: "+fmt.Sprint(o.container))
		} else {
			t.has(3, "hostPort: %d", o.host)
		}
		if o.hostIP != "" {
			t.say(3, "Only at this address of the node.")
			t.has(3, "hostIP: %s", scalar(o.hostIP))
		}
		t.has(3, "protocol: %s", o.protocol)
	}
}

func (t *text) resources(p *Pod) {
	t.say(2, "limits is the most that it gets: beyond memory it is killed, beyond cpu it waits. requests is what is kept free for it, and",
		"like limits unless it is said. A change of either reaches the container while it runs.")
	if p.CPU == "" && p.Memory == "" {
		t.may(2, "resources:", "  requests:", "    cpu: 100m", "    memory: 64Mi", "  limits:", "    memory: 256Mi")
		return
	}
	t.has(2, "resources:\n      limits:")
	for _, l := range []struct{ name, value string }{{"cpu", p.CPU}, {"memory", p.Memory}} {
		if l.value == "" {
			continue
		}
		t.has(4, "%s: %s", l.name, scalar(l.value))
	}
}

func (t *text) probes(ports []port) {
	number := 8080
	for _, o := range ports {
		if o.protocol == "TCP" {
			number = o.container
			break
		}
	}
	t.say(2, "The pod counts as ready when this succeeds (httpGet, tcpSocket, grpc or exec); without it, when the container runs.",
		"A livenessProbe of the same form has the container started again when it fails, a startupProbe holds both off.")
	t.may(2, "readinessProbe:", "  tcpSocket:", fmt.Sprintf("    port: %d", number), "  periodSeconds: 10")
}

func (t *text) volumes(mounts []mount) {
	if len(mounts) == 0 {
		return
	}
	t.say(1, "What of the node or of other objects containers see. Also: configMap, secret, persistentVolumeClaim, nfs, iscsi, csi, image.")
	t.has(1, "volumes:")
	have := map[string]bool{}
	for _, m := range mounts {
		if have[m.volume] {
			continue
		}
		have[m.volume] = true
		t.has(1, "- name: %s", scalar(m.volume))
		if m.host != "" {
			t.say(2, "Of the node itself, as it is there.")
			t.has(2, "hostPath:\n      path: %s", scalar(m.host))
			t.say(3, "What must be there, or the pod does not start: Directory, File, Socket; DirectoryOrCreate makes one.")
			t.may(3, "type: Directory")
			continue
		}
		t.say(2, "A directory of the pod's own: it outlives containers, and goes with the pod, also when a change of this file makes the pod",
			"anew. What is to stay belongs into a hostPath or a persistentVolumeClaim.")
		t.has(2, "emptyDir:")
		t.say(3, `"" is the node's disk; Memory is memory, which counts as that of who writes.`)
		t.has(3, `medium: ""`)
		t.say(3, "A pod that has more in it is evicted.")
		t.may(3, "sizeLimit: 1Gi")
	}
}

// plain is what YAML takes for nothing but a text, unless it is one of the words that it has values for.
var (
	plain = regexp.MustCompile(`^[A-Za-z/][A-Za-z0-9/._@-]*(:[A-Za-z0-9/._@-]+)*$`)
	words = regexp.MustCompile(`(?i)^(y|n|yes|no|on|off|true|false|null|nan|inf)$`)
	sized = regexp.MustCompile(`^[0-9]+(m|[kKMGTPE]i?)$`)
)

// scalar is a text as YAML has it. What JSON makes of one is a double-quoted scalar, too (YAML 1.2, section 1.3), but
// for characters that JSON takes as they are and YAML does not, or that nobody would see: those get their numbers
// (section 5.7).
func scalar(s string) string {
	if plain.MatchString(s) && !words.MatchString(s) || sized.MatchString(s) {
		return s
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	// A string can always be encoded.
	_ = e.Encode(s)
	var out strings.Builder
	for _, r := range strings.TrimSuffix(b.String(), "\n") {
		switch {
		case unicode.IsPrint(r):
			out.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&out, `\U%08x`, r)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	return out.String()
}
