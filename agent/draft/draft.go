// Package draft writes manifests for who begins with one: of what a command line says, with a comment at each field
// that says why it is there and what else could be.
package draft

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/distribution/reference"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-node/berth/internal/quantity"
)

// Pod is what a manifest is asked for, as flags have it.
type Pod struct {
	Name, Namespace      string
	Image                string
	Ports, Volumes, Env  []string
	CPU, Memory, Restart string
	Args                 []string
	Command              bool // Args take the place of the image's entry point, too
}

// AddFlags adds the flags of everything but name, namespace and image to fs.
func (p *Pod) AddFlags(fs *pflag.FlagSet) {
	fs.StringArrayVarP(&p.Ports, "port", "p", nil,
		"port that the container listens on, [[IP:]HOSTPORT:]PORT[/tcp|udp|sctp]; with HOSTPORT the node's leads to it")
	fs.StringArrayVarP(&p.Volumes, "volume", "v", nil,
		"volume, NAME:PATH[:ro] for a directory that the pod has as long as it is there, /HOSTPATH:PATH[:ro] for what is on the node")
	fs.StringArrayVarP(&p.Env, "env", "e", nil, "environment variable, NAME=VALUE")
	fs.StringVar(&p.CPU, "cpu", "", "most CPU time that the container gets, such as 500m for half a CPU (default no limit)")
	fs.StringVar(&p.Memory, "memory", "", "most memory that it gets, such as 256Mi (default no limit)")
	fs.StringVar(&p.Restart, "restart", "Always", "whether it is started again when it ends: Always, OnFailure or Never")
	fs.BoolVar(&p.Command, "command", false, "what follows -- is the command in place of the image's entry point, not its arguments")
}

// NameOf is the name that a pod of an image gets: the image's own, without registry, directory and tag.
func NameOf(image string) (string, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return "", fmt.Errorf("image %q: %w", image, err)
	}
	name := strings.Trim(strings.NewReplacer("_", "-", ".", "-").Replace(path.Base(reference.Path(named))), "-")
	if msgs := validation.IsDNS1123Label(name); len(msgs) > 0 {
		return "", fmt.Errorf("image %q makes no name of a pod: --name NAME says it", image)
	}
	return name, nil
}

// port is a value of --port.
type port struct {
	hostIP          string
	host, container int
	protocol        string
}

// mount is a value of --volume.
type mount struct {
	volume   string
	host     string // on the node; "": a directory of the pod's own
	path     string
	readOnly bool
}

type variable struct{ name, value string }

// parts are the values of a Pod's flags, understood.
type parts struct {
	ports  []port
	mounts []mount
	env    []variable
}

// Manifest is the manifest, or what is wrong with which flag.
func (p *Pod) Manifest() ([]byte, error) {
	var errs []error
	if msgs := validation.IsDNS1123Subdomain(p.Name); len(msgs) > 0 {
		errs = append(errs, fmt.Errorf("name %q: %s", p.Name, strings.Join(msgs, "; ")))
	}
	if msgs := validation.IsDNS1123Label(p.Namespace); len(msgs) > 0 {
		errs = append(errs, fmt.Errorf("--namespace %q: %s", p.Namespace, strings.Join(msgs, "; ")))
	}
	if p.Image == "" {
		errs = append(errs, errors.New("--image: a container needs one, such as docker.io/library/nginx:1.27"))
	} else if _, err := reference.ParseNormalizedNamed(p.Image); err != nil {
		errs = append(errs, fmt.Errorf("--image %q: %w; one is REGISTRY/REPOSITORY:TAG", p.Image, err))
	}
	got, err := p.parse()
	errs = append(errs, err, checkAmount("cpu", p.CPU, "500m or 2"), checkAmount("memory", p.Memory, "256Mi or 1Gi"))
	if !slices.Contains([]string{"Always", "OnFailure", "Never"}, p.Restart) {
		errs = append(errs, fmt.Errorf("--restart %q: must be Always, OnFailure or Never", p.Restart))
	}
	if p.Command && len(p.Args) == 0 {
		errs = append(errs, errors.New("--command: the command comes after --"))
	}
	for _, a := range p.Args {
		if err := checkText(a); err != nil {
			errs = append(errs, fmt.Errorf("argument %q after --: %w", a, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return p.write(got), nil
}

// checkAmount says what is wrong with a value of --cpu or --memory.
func checkAmount(flag, text, such string) error {
	if text == "" {
		return nil
	}
	q, err := quantity.Parse(text)
	switch {
	case err != nil:
		return fmt.Errorf("--%s %q: %w; it is a number with a unit, such as %s", flag, text, err, such)
	case q.Sign() <= 0:
		return fmt.Errorf("--%s %q: must be more than 0, such as %s", flag, text, such)
	case flag == "memory" && q.MilliValue()%1000 != 0:
		return fmt.Errorf("--memory %q: m is a thousandth of a byte; Mi is what is meant, as in %s", text, such)
	}
	return nil
}

func (p *Pod) parse() (parts, error) {
	var out parts
	var errs []error
	fail := func(flag, value string, err error) { errs = append(errs, fmt.Errorf("--%s %q: %w", flag, value, err)) }
	for _, v := range p.Ports {
		one, err := parsePort(v)
		if err == nil && slices.ContainsFunc(out.ports, one.meets) {
			err = errors.New("an earlier one has that port")
		}
		if err != nil {
			fail("port", v, err)
		}
		out.ports = append(out.ports, one)
	}
	for _, v := range p.Volumes {
		one, err := parseVolume(v)
		if err == nil && slices.ContainsFunc(out.mounts, func(m mount) bool { return m.path == one.path }) {
			err = fmt.Errorf("an earlier one is at %s", one.path)
		}
		if err != nil {
			fail("volume", v, err)
		}
		out.mounts = append(out.mounts, one)
	}
	out.nameHosts()
	for _, v := range p.Env {
		name, value, ok := strings.Cut(v, "=")
		err := checkText(value)
		if msgs := validation.IsEnvVarName(name); !ok || len(msgs) > 0 {
			err = errors.New("must be NAME=VALUE, with letters, digits, _, - and . in NAME")
		}
		if slices.ContainsFunc(out.env, func(e variable) bool { return e.name == name }) {
			err = errors.New("an earlier one has that name")
		}
		if err != nil {
			fail("env", v, err)
		}
		out.env = append(out.env, variable{name, value})
	}
	return out, errors.Join(errs...)
}

// checkText refuses what neither YAML nor execve(2) can hand on.
func checkText(s string) error {
	if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
		return errors.New("must be UTF-8 without NUL")
	}
	return nil
}

// meets says whether both ports ask for the same one.
func (p port) meets(q port) bool {
	sameHost := p.host != 0 && p.host == q.host && (p.hostIP == q.hostIP || p.hostIP == "" || q.hostIP == "")
	return p.protocol == q.protocol && (sameHost || p.container == q.container && p.host == q.host && p.hostIP == q.hostIP)
}

func parsePort(text string) (port, error) {
	const form = "must be [[IP:]HOSTPORT:]PORT[/tcp|udp|sctp], such as 8080:80"
	rest, protocol, said := strings.Cut(text, "/")
	p := port{protocol: strings.ToUpper(protocol)}
	if !said {
		p.protocol = "TCP"
	}
	if !slices.Contains([]string{"TCP", "UDP", "SCTP"}, p.protocol) {
		return p, errors.New(form)
	}
	host, container, mapped := cutLast(rest)
	var err error
	if p.container, err = portNumber(container); err != nil {
		return p, fmt.Errorf("%w: %s", err, form)
	}
	if !mapped {
		return p, nil
	}
	ip, number, hasIP := cutLast(host)
	if p.host, err = portNumber(number); err != nil {
		return p, fmt.Errorf("%w: %s", err, form)
	}
	if hasIP {
		addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(ip, "["), "]"))
		if err != nil || addr.Zone() != "" {
			return p, fmt.Errorf("%q is no IP address: %s", ip, form)
		}
		p.hostIP = addr.String()
	}
	return p, nil
}

// cutLast parts a text at its last colon; without one all of it is what comes after.
func cutLast(s string) (before, after string, found bool) {
	if i := strings.LastIndexByte(s, ':'); i >= 0 {
		return s[:i], s[i+1:], true
	}
	return "", s, false
}

func portNumber(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > 65535 {
		return 0, fmt.Errorf("%q is no port from 1 to 65535", s)
	}
	return n, nil
}

func parseVolume(text string) (mount, error) {
	const form = "must be NAME:PATH[:ro] or /HOSTPATH:PATH[:ro], such as data:/var/lib/data"
	fields := strings.Split(text, ":")
	if len(fields) < 2 || len(fields) > 3 || len(fields) == 3 && fields[2] != "ro" && fields[2] != "rw" {
		return mount{}, errors.New(form)
	}
	m := mount{path: fields[1], readOnly: len(fields) == 3 && fields[2] == "ro"}
	if err := checkText(text); err != nil {
		return m, err
	}
	if !path.IsAbs(m.path) || path.Clean(m.path) == "/" {
		return m, fmt.Errorf("PATH %q must begin with /, and be below it: %s", m.path, form)
	}
	if !path.IsAbs(fields[0]) {
		m.volume = fields[0]
		if msgs := validation.IsDNS1123Label(m.volume); len(msgs) > 0 {
			return m, fmt.Errorf("NAME %q: %s", m.volume, strings.Join(msgs, "; "))
		}
		return m, nil
	}
	if m.host = fields[0]; slices.Contains(strings.Split(m.host, "/"), "..") {
		return m, errors.New("HOSTPATH must not have .. in it")
	}
	return m, nil
}

var notInNames = regexp.MustCompile("[^a-z0-9]+")

// nameHosts names the volumes of what is on the node: by the path, and as no other is named.
func (p *parts) nameHosts() {
	for i := range p.mounts {
		m := &p.mounts[i]
		if m.host == "" {
			continue
		}
		base := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(m.host), "-"), "-")
		base = strings.TrimRight("host-"+base[:min(len(base), 50)], "-")
		m.volume = base
		taken := func(o mount) bool { return o.volume == m.volume && o.host != m.host }
		for n := 2; slices.ContainsFunc(p.mounts, taken); n++ {
			m.volume = fmt.Sprintf("%s-%d", base, n)
		}
	}
}
