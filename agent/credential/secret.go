package credential

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// entry is what docker's configuration has of a registry: user and password, or both in one.
type entry struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

// Offer is what may be shown to a registry, and the secret that it is of.
type Offer struct {
	Auth   *runtimeapi.AuthConfig
	Secret *corev1.Secret // nil: it is the node's, and so everybody's on it
}

// Hash tells whether two offers show the same.
func (o *Offer) Hash() string {
	h := sha256.New()
	for _, s := range []string{o.Auth.GetUsername(), o.Auth.GetPassword(), o.Auth.GetAuth(), o.Auth.GetIdentityToken(), o.Auth.GetRegistryToken()} {
		// With their lengths: what is at the end of one must not be taken for the beginning of the next.
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// FromSecrets returns what a pod's secrets have for the registry of an image, in the order in which it is to be tried.
// An error tells of a secret that is of no use, and nothing of what is in it; what the others have is returned all the
// same.
func FromSecrets(ref string, secrets []*corev1.Secret) ([]Offer, error) {
	img, err := parseImage(ref)
	if err != nil {
		return nil, err
	}
	type candidate struct {
		key   string
		offer Offer
	}
	var found []candidate
	var errs []error
	for _, s := range secrets {
		entries, err := entries(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("secret %q: %w", s.Name, err))
		}
		for _, key := range slices.SortedFunc(maps.Keys(entries), before) {
			if pat, err := parsePattern(registryOf(key)); err != nil || !pat.match(img) {
				continue
			}
			auth, err := entries[key].config()
			if err != nil {
				errs = append(errs, fmt.Errorf("secret %q: credentials of %s: %w", s.Name, key, err))
				continue
			}
			found = append(found, candidate{registryOf(key), Offer{auth, s}})
		}
	}
	slices.SortStableFunc(found, func(a, b candidate) int { return before(a.key, b.key) })
	var out []Offer
	for _, f := range found {
		out = append(out, f.offer)
	}
	return out, errors.Join(errs...)
}

// entries are the registries of a secret, in the format that its type says.
func entries(s *corev1.Secret) (map[string]entry, error) {
	switch s.Type {
	case corev1.SecretTypeDockerConfigJson:
		var c struct {
			Auths map[string]entry `json:"auths"`
		}
		if json.Unmarshal(s.Data[corev1.DockerConfigJsonKey], &c) != nil {
			return nil, errors.New(corev1.DockerConfigJsonKey + " is no configuration of docker")
		}
		return c.Auths, nil
	case corev1.SecretTypeDockercfg:
		var c map[string]entry
		if json.Unmarshal(s.Data[corev1.DockerConfigKey], &c) != nil {
			return nil, errors.New(corev1.DockerConfigKey + " is no configuration of docker")
		}
		return c, nil
	}
	return nil, fmt.Errorf("type %q: must be %s or %s", s.Type, corev1.SecretTypeDockerConfigJson, corev1.SecretTypeDockercfg)
}

// registryOf makes of docker's keys, which may be the URL of a version of the registry's API, what images have in their
// names. That of Docker Hub is called index.docker.io there.
func registryOf(key string) string {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	key = strings.TrimSuffix(key, "/")
	for _, v := range []string{"/v1", "/v2"} {
		key = strings.TrimSuffix(key, v)
	}
	if rest, ok := strings.CutPrefix(key, "index.docker.io"); ok {
		return "docker.io" + rest
	}
	return key
}

func (e entry) config() (*runtimeapi.AuthConfig, error) {
	a := &runtimeapi.AuthConfig{Username: e.Username, Password: e.Password, IdentityToken: e.IdentityToken, RegistryToken: e.RegistryToken}
	if e.Auth == "" || a.Username != "" || a.Password != "" {
		return a, nil
	}
	both, err := base64.StdEncoding.DecodeString(e.Auth)
	if err != nil {
		if both, err = base64.RawStdEncoding.DecodeString(e.Auth); err != nil {
			return nil, errors.New("auth is not base64")
		}
	}
	user, password, ok := strings.Cut(string(both), ":")
	if !ok {
		return nil, errors.New("auth is not USER:PASSWORD")
	}
	a.Username, a.Password = user, password
	return a, nil
}
