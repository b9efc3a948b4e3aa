package bootstraptoken

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-node/berth/control/controller"
)

const (
	infoName      = "cluster-info"
	configKey     = "kubeconfig"
	signaturePart = "jws-kubeconfig-"
)

// Cluster is what the ConfigMap says of the cluster.
type Cluster struct {
	Server string        // where it is reached, a URL
	Bundle func() []byte // its authorities, PEM
}

type signer struct {
	client  kubernetes.Interface
	secrets corelisters.SecretNamespaceLister
	infos   corelisters.ConfigMapNamespaceLister
	cluster Cluster
	now     func() time.Time
}

// NewSigner makes the controller that keeps cluster-info. It hears by subscribe that the authorities are others.
func NewSigner(client, reader kubernetes.Interface, secrets coreinformers.SecretInformer, cluster Cluster, subscribe func(func()), log *slog.Logger) (controller.Controller, error) {
	infos, err := controller.ConfigMaps(reader, metav1.NamespacePublic, infoName)
	if err != nil {
		return nil, fmt.Errorf("watch ConfigMap %s: %w", infoName, err)
	}
	s := &signer{
		client, secrets.Lister().Secrets(metav1.NamespaceSystem),
		corelisters.NewConfigMapLister(infos.GetIndexer()).ConfigMaps(metav1.NamespacePublic), cluster, time.Now,
	}
	loop := controller.NewLoop(log, 1, s.sync).Start(infoName).WatchOwn(infos, controller.Always(infoName))
	loop.Watch(secrets.Informer(), func(o any) []string {
		if s, ok := o.(*corev1.Secret); ok && s.Namespace == metav1.NamespaceSystem && isToken(s) {
			return []string{infoName}
		}
		return nil
	})
	subscribe(func() { loop.Add(infoName) })
	return loop, nil
}

func (s *signer) sync(ctx context.Context, _ string) (time.Duration, error) {
	has, err := s.infos.Get(infoName)
	missing := apierrors.IsNotFound(err)
	if missing {
		has = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespacePublic, Name: infoName}}
	} else if err != nil {
		return 0, fmt.Errorf("find ConfigMap %s: %w", infoName, err)
	}
	config, err := s.kubeconfig(has.Data[configKey])
	if err != nil {
		return 0, err
	}
	want, next, err := s.data(has.Data, config)
	if err != nil {
		return 0, err
	}
	if !missing && maps.Equal(has.Data, want) {
		return next, nil
	}
	has = has.DeepCopy()
	has.Data = want
	all := s.client.CoreV1().ConfigMaps(metav1.NamespacePublic)
	if missing {
		_, err = all.Create(ctx, has, metav1.CreateOptions{})
	} else {
		_, err = all.Update(ctx, has, metav1.UpdateOptions{})
	}
	if err != nil {
		return 0, fmt.Errorf("write ConfigMap %s: %w", infoName, err)
	}
	return next, nil
}

// data is what the ConfigMap is to have, and when it will be something else without anybody's doing. What others have
// put there stays.
func (s *signer) data(has map[string]string, config string) (map[string]string, time.Duration, error) {
	want := map[string]string{configKey: config}
	for k, v := range has {
		if k != configKey && !strings.HasPrefix(k, signaturePart) {
			want[k] = v
		}
	}
	secrets, err := s.secrets.List(labels.Everything())
	if err != nil {
		return nil, 0, fmt.Errorf("list tokens: %w", err)
	}
	var next time.Duration
	now := s.now()
	for _, secret := range secrets {
		t, ok := signing(secret, now)
		if !ok {
			continue
		}
		if want[signaturePart+t.id], err = detached(config, t); err != nil {
			return nil, 0, fmt.Errorf("sign with token %s: %w", t.id, err)
		}
		if at := expiry(secret); !at.IsZero() && (next == 0 || at.Sub(now) < next) {
			next = at.Sub(now)
		}
	}
	return want, next, nil
}

// kubeconfig is what says where the cluster is, and by which authorities it is known. A server that is there stays: it
// may be a load balancer's address, which only an administrator knows.
func (s *signer) kubeconfig(text string) (string, error) {
	server, bundle := s.cluster.Server, s.cluster.Bundle()
	if old, err := clientcmd.Load([]byte(text)); err == nil && len(old.Clusters) == 1 {
		for _, c := range old.Clusters {
			if c.Server != "" {
				server = c.Server
			}
			if bytes.Equal(c.CertificateAuthorityData, bundle) && c.Server != "" {
				return text, nil
			}
		}
	}
	// The name is empty as kubeadm's is, which puts its own in.
	out, err := clientcmd.Write(clientcmdapi.Config{Clusters: map[string]*clientcmdapi.Cluster{
		"": {Server: server, CertificateAuthorityData: bundle},
	}})
	if err != nil {
		return "", fmt.Errorf("write kubeconfig of ConfigMap %s: %w", infoName, err)
	}
	return string(out), nil
}

// detached signs a text as JSON Web Signature without the text (RFC 7515, appendix F), by HMAC with the token's secret.
func detached(text string, t token) (string, error) {
	header, err := json.Marshal(struct {
		Algorithm string `json:"alg"`
		Key       string `json:"kid"`
	}{"HS256", t.id})
	if err != nil {
		return "", err
	}
	encode := base64.RawURLEncoding.EncodeToString
	mac := hmac.New(sha256.New, []byte(t.secret))
	head := encode(header)
	mac.Write([]byte(head + "." + encode([]byte(text))))
	return head + ".." + encode(mac.Sum(nil)), nil
}
