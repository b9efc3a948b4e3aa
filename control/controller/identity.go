package controller

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// As is the configuration by which a controller speaks to the API: as a service account of kube-system, with its rights
// and no more. It is impersonated, so that no token has to be made, kept and renewed for who is in the same process;
// the audit log has both names.
func As(config *rest.Config, account string) *rest.Config {
	c := rest.CopyConfig(config)
	c.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + metav1.NamespaceSystem + ":" + account}
	c.UserAgent = "berth-control/" + account
	return c
}
