package auth

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
)

// longestConfiguration bounds a file of configuration, in bytes.
const longestConfiguration = 1 << 20

// readFile reads a file of configuration.
func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, longestConfiguration+1))
	if err != nil {
		return nil, err
	}
	if len(text) > longestConfiguration {
		return nil, fmt.Errorf("read %s: it is longer than %d bytes", name, longestConfiguration)
	}
	return text, nil
}

// readAuthentication reads a file of authentication. Without one it is empty.
func readAuthentication(name, issuer string) (*apiserver.AuthenticationConfiguration, error) {
	if name == "" {
		return &apiserver.AuthenticationConfiguration{}, nil
	}
	text, err := readFile(name)
	if err != nil {
		return nil, err
	}
	config, err := parseAuthentication(text, issuer)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return config, nil
}

func parseAuthentication(text []byte, issuer string) (*apiserver.AuthenticationConfiguration, error) {
	config := &apiserver.AuthenticationConfiguration{}
	if err := decode(text, config); err != nil {
		return nil, err
	}
	// The cluster's own issuer is not to be spoken for by another.
	errs := validation.ValidateAuthenticationConfiguration(authenticationcel.NewDefaultCompiler(), config, []string{issuer})
	return config, errs.ToAggregate()
}

// The authorizers that a file may name beside webhooks, each once.
const (
	typeNode       = apiserver.AuthorizerType("Node")
	typeRBAC       = apiserver.AuthorizerType("RBAC")
	typeAlwaysDeny = apiserver.AuthorizerType("AlwaysDeny")
)

// readAuthorization reads a file of authorization. Without one the authorizers are Node and RBAC.
func readAuthorization(name string) (*apiserver.AuthorizationConfiguration, error) {
	if name == "" {
		return &apiserver.AuthorizationConfiguration{Authorizers: []apiserver.AuthorizerConfiguration{
			{Type: typeNode, Name: "node"}, {Type: typeRBAC, Name: "rbac"},
		}}, nil
	}
	text, err := readFile(name)
	if err != nil {
		return nil, err
	}
	config, err := parseAuthorization(text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return config, nil
}

func parseAuthorization(text []byte) (*apiserver.AuthorizationConfiguration, error) {
	config := &apiserver.AuthorizationConfiguration{}
	if err := decode(text, config); err != nil {
		return nil, err
	}
	errs := validation.ValidateAuthorizationConfiguration(authorizationcel.NewDefaultCompiler(), nil, config,
		sets.New(string(typeNode), string(typeRBAC), string(typeAlwaysDeny), string(apiserver.TypeWebhook)),
		sets.New(string(apiserver.TypeWebhook)))
	return config, errs.ToAggregate()
}

// decode reads an object of apiserver.config.k8s.io of any version, with its defaults. A field that there is not is an
// error: it would be a rule that somebody believes to hold.
func decode(text []byte, into runtime.Object) error {
	if len(bytes.TrimSpace(text)) == 0 {
		return errors.New("it is empty, want an object of apiserver.config.k8s.io")
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder()
	_, _, err := decoder.Decode(text, nil, into)
	return err
}
