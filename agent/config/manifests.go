package config

import (
	"errors"
	"fmt"
	"net/url"

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

// Complete makes the directory's path absolute, and says what is wrong with the settings.
func (m *Manifests) Complete() error {
	errs := []error{absolute("manifest-dir", &m.ManifestDir)}
	u, err := url.Parse(m.ManifestURL)
	if m.ManifestURL != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		errs = append(errs, fmt.Errorf("--manifest-url %q: must be an http:// or https:// URL", m.ManifestURL))
	}
	return errors.Join(errs...)
}
