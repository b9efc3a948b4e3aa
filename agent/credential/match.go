package credential

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/distribution/reference"
)

// pattern says which images something is for: a registry, whose labels may have globs, and a path below it.
type pattern struct {
	labels []string // of the domain
	port   string   // "" = any
	path   string   // without slashes at its ends; "" = any
}

func parsePattern(s string) (pattern, error) {
	// Kubernetes wants no scheme, but docker's configuration files have some, and plugins hand those on.
	bare := strings.TrimPrefix(strings.TrimPrefix(s, "https://"), "http://")
	host, rest, _ := strings.Cut(bare, "/")
	domain, port, hasPort := strings.Cut(host, ":")
	if domain == "" || hasPort && port == "" {
		return pattern{}, fmt.Errorf("%q: has no domain or an empty port", s)
	}
	if strings.ContainsAny(port+rest, "*?[") {
		return pattern{}, fmt.Errorf("%q: globs are for the domain only", s)
	}
	p := pattern{labels: strings.Split(domain, "."), port: port, path: strings.Trim(rest, "/")}
	for _, l := range p.labels {
		if _, err := path.Match(l, ""); err != nil {
			return pattern{}, fmt.Errorf("%q: %w", s, err)
		}
	}
	return p, nil
}

// match says whether the pattern is for an image: as many labels, each matching, the port if there is one, and a path
// that the image's begins with. The path is a prefix of characters, as it is for kubelet, not of elements.
func (p pattern) match(i image) bool {
	domain, port, _ := strings.Cut(i.registry, ":")
	labels := strings.Split(domain, ".")
	if len(labels) != len(p.labels) || p.port != "" && p.port != port || !strings.HasPrefix(i.path, p.path) {
		return false
	}
	for n, l := range p.labels {
		if ok, err := path.Match(l, labels[n]); err != nil || !ok {
			return false
		}
	}
	return true
}

// image is the part of a reference that credentials are looked up by.
type image struct {
	registry string // with its port
	path     string
}

func parseImage(ref string) (image, error) {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return image{}, fmt.Errorf("parse image %q: %w", ref, err)
	}
	i := image{registry: reference.Domain(named), path: reference.Path(named)}
	if i.registry == "" {
		return image{}, errors.New("parse image " + ref + ": it has no registry")
	}
	return i, nil
}

// name is the image without tag and digest, as plugins and the cache want it.
func (i image) name() string { return i.registry + "/" + i.path }

// before orders keys so that the more special one comes first: reverse order of the strings puts longer ones before
// what they begin with, and letters before '*'.
func before(a, b string) int { return cmp.Compare(b, a) }
