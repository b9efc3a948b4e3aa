package credential

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletv1 "k8s.io/kubelet/config/v1"
	credentialv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
	"sigs.k8s.io/yaml"
)

var (
	configType   = metav1.TypeMeta{APIVersion: kubeletv1.SchemeGroupVersion.String(), Kind: "CredentialProviderConfig"}
	requestType  = metav1.TypeMeta{APIVersion: credentialv1.SchemeGroupVersion.String(), Kind: "CredentialProviderRequest"}
	responseType = metav1.TypeMeta{APIVersion: credentialv1.SchemeGroupVersion.String(), Kind: "CredentialProviderResponse"}
)

// load reads the configuration. Anything it does not know is an error: a misspelt field would only show as a pull that
// fails. A directory is read as all the files in it, their providers in the order of the files' names.
func load(path string) ([]kubeletv1.CredentialProvider, error) {
	files := []string{path}
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if st.IsDir() {
		if files, err = configFiles(path); err != nil {
			return nil, err
		}
	}
	var out []kubeletv1.CredentialProvider
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		c, err := parse(b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		out = append(out, c.Providers...)
	}
	return out, validate(out)
}

func configFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); !e.IsDir() && slices.Contains([]string{".json", ".yaml", ".yml"}, ext) {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: no .json, .yaml or .yml file in it", dir)
	}
	return files, nil
}

func parse(b []byte) (kubeletv1.CredentialProviderConfig, error) {
	var c kubeletv1.CredentialProviderConfig
	if err := yaml.UnmarshalStrict(b, &c); err != nil {
		return c, err
	}
	if c.TypeMeta != configType {
		return c, fmt.Errorf("%s of %s: want %s of %s", c.Kind, c.APIVersion, configType.Kind, configType.APIVersion)
	}
	return c, nil
}

// validate tells all that is wrong at once.
func validate(providers []kubeletv1.CredentialProvider) error {
	if len(providers) == 0 {
		return errors.New("providers: none")
	}
	var errs []error
	seen := map[string]bool{}
	for i, p := range providers {
		wrong := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("providers[%d] %q: "+format, append([]any{i, p.Name}, args...)...))
		}
		// The name is a file of the directory of plugins, and must not lead out of it.
		if p.Name == "" || p.Name == "." || p.Name == ".." || strings.ContainsAny(p.Name, "/ \t\n\x00") {
			wrong("name: must be the name of a file")
		}
		if seen[p.Name] {
			wrong("name: there is another provider with it")
		}
		seen[p.Name] = true
		if p.APIVersion != requestType.APIVersion {
			wrong("apiVersion %q: must be %s", p.APIVersion, requestType.APIVersion)
		}
		if len(p.MatchImages) == 0 {
			wrong("matchImages: must not be empty")
		}
		for _, m := range p.MatchImages {
			if _, err := parsePattern(m); err != nil {
				wrong("matchImages: %w", err)
			}
		}
		switch d := p.DefaultCacheDuration; {
		case d == nil:
			wrong("defaultCacheDuration: is required")
		case d.Duration < 0:
			wrong("defaultCacheDuration %v: must not be negative", d.Round(time.Second))
		}
		for _, e := range p.Env {
			if e.Name == "" || strings.ContainsAny(e.Name, "=\x00") {
				wrong("env %q: is no name of a variable", e.Name)
			}
		}
		// Static pods have no service account, and so there is never a token for them.
		if t := p.TokenAttributes; t != nil && (t.RequireServiceAccount == nil || *t.RequireServiceAccount) {
			wrong("tokenAttributes: pods of manifests have no service account; only requireServiceAccount: false can be used")
		}
	}
	return errors.Join(errs...)
}
