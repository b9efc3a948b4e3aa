/* What libcontainer's init does for us. See link.c. */
#ifndef BERTH_LINK_H
#define BERTH_LINK_H
int link_join(int sock);
void no_huge_pages(void);
#endif
