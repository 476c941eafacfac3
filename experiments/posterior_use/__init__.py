"""Where does a posterior over the last layer pay? Few labels, few items a class, wrong labels, labels to be chosen."""
