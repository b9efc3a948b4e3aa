package config

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"
)

// Manifests is where pods are asked for.
type Manifests struct {
	ManifestDir string
	ManifestURL string
	// ManifestHeaders are what ManifestURL is asked with, as "NAME:VALUE".
	ManifestHeaders []string
}

// AddFlags adds the flags to fs.
func (m *Manifests) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&m.ManifestDir, "manifest-dir", m.ManifestDir, "pod manifests that this node runs")
	fs.StringVar(&m.ManifestURL, "manifest-url", m.ManifestURL, "more pod manifests, asked for by HTTP every 20 s")
	fs.StringArrayVar(&m.ManifestHeaders, "manifest-url-header", m.ManifestHeaders,
		"NAME:VALUE to ask --manifest-url with (may be given several times)")
}

// KeptManifests is the directory of a root directory where the agent keeps the last good manifests.
func KeptManifests(rootDir string) string { return filepath.Join(rootDir, "manifests") }

// apart says whether the directory of manifests is one of the agent's own, whose files it removes as it likes.
func (m *Manifests) apart(p Place) error {
	for flag, own := range map[string]string{"root-dir": p.RootDir, "run-dir": p.RunDir, "log-dir": p.LogDir} {
		if same(m.ManifestDir, own) {
			return fmt.Errorf("--manifest-dir and --%s must differ", flag)
		}
	}
	if own := KeptManifests(p.RootDir); same(m.ManifestDir, own) {
		return fmt.Errorf("--manifest-dir %s: must not be %s, where the agent keeps copies", m.ManifestDir, own)
	}
	return nil
}

// same says whether two paths are of one directory, also where one leads to it by a link.
func same(a, b string) bool {
	if a == b {
		return true
	}
	one, err := os.Stat(a)
	if err != nil {
		return false
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}

// Complete makes the directory's path absolute, and says what is wrong with the settings.
func (m *Manifests) Complete() error {
	errs := []error{absolute("manifest-dir", &m.ManifestDir)}
	u, err := url.Parse(m.ManifestURL)
	if m.ManifestURL != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		errs = append(errs, fmt.Errorf("--manifest-url %q: must be an http:// or https:// URL", m.ManifestURL))
	}
	return errors.Join(errs...)
}
